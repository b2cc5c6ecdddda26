"""Webhooks: who is sent the changes of the log. A secret is in one response and nowhere else.

A scoped operator has webhooks of its own, which are sent the changes of its corpora alone (`kb.webhooks.sending`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import delete, get, post
from litestar.params import JSONBody
from msgspec import Meta, field

from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, in_thread
from colmlm.api.middleware.idempotency import TELLS_SECRET
from colmlm.api.ports import FromPorts
from colmlm.api.routes.parameters import Cursor, Limit, PathId, after_of, page
from colmlm.api.wire import MAX_ID, Page, Request, WebhookWithSecret
from colmlm.kb.webhooks.records import LONGEST_URL, Webhook, WebhookDelivery

ChangeKind = Annotated[str, Meta(min_length=1, max_length=100)]
CorpusName = Annotated[str, Meta(min_length=1, max_length=1000)]


class NewWebhook(Request, frozen=True, kw_only=True):
    """Choose whom to send changes to: those after change `since` (null: from now on), of these `kinds` (none: all).

    `format` is that of Standard Webhooks or a CloudEvent; both are signed in the same way. Of `corpora`, where they are
    named, it is sent the changes that concern nothing else; that of a token of some corpora is always so.
    """

    url: Annotated[str, Meta(min_length=1, max_length=LONGEST_URL)]
    kinds: Annotated[list[ChangeKind], Meta(max_length=100)] = field(default_factory=list)
    format: Literal["standard", "cloudevents"] = "standard"
    since: Annotated[int, Meta(ge=0, le=MAX_ID)] | None = None
    corpora: Annotated[list[CorpusName], Meta(max_length=100)] = field(default_factory=list)


class Replay(Request, frozen=True, kw_only=True):
    """From which change on to send all again. A later one than was delivered passes over those between."""

    from_seq: Annotated[int, Meta(ge=1, le=MAX_ID)]


@get("/webhooks", **in_thread(Right.edit, scoped=CorpusLimit.filter))
def list_webhooks(ports: FromPorts, cursor: Cursor = None, limit: Limit = 100) -> Page[Webhook]:
    """List webhooks.

    In the order in which they were added, with how far each was told and what went wrong last; never with a secret.
    """
    found = ports.kb.webhooks.all(after=after_of(cursor, "webhooks"), limit=limit + 1)
    return page(found, limit, "webhooks", lambda webhook: (webhook.webhook_id,))


@get("/webhooks/{webhook_id:int}", **in_thread(Right.edit, scoped=CorpusLimit.filter))
def read_webhook(ports: FromPorts, webhook_id: PathId) -> Webhook:
    """Read a webhook.

    How far it was told, its state, and what went wrong last.
    """
    return ports.kb.webhooks.show(webhook_id)


@post("/webhooks", **in_thread(Right.edit, Limiter.long_reads, extra=TELLS_SECRET, scoped=CorpusLimit.filter))
def add_webhook(ports: FromPorts, data: JSONBody[NewWebhook]) -> WebhookWithSecret:
    """Add a webhook.

    A worker sends it each change of the log in order, at least once. Its secret is in this response only. An address
    that is not public is refused, unless the server's settings allow its network.
    """
    secret, webhook = ports.kb.webhooks.add(
        data.url, kinds=data.kinds, form=data.format, since=data.since, corpora=data.corpora
    )
    return WebhookWithSecret(webhook=webhook, secret=secret)


@post("/webhooks/{webhook_id:int}/pause", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.filter))
def pause_webhook(ports: FromPorts, webhook_id: PathId) -> Webhook:
    """Pause a webhook.

    Nothing more is sent to it until it is resumed, and nothing is lost.
    """
    return ports.kb.webhooks.pause(webhook_id)


@post(
    "/webhooks/{webhook_id:int}/resume", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.filter)
)
def resume_webhook(ports: FromPorts, webhook_id: PathId) -> Webhook:
    """Resume a webhook.

    Goes on after the last change that was delivered, also where the webhook had failed.
    """
    return ports.kb.webhooks.resume(webhook_id)


@post(
    "/webhooks/{webhook_id:int}/replay", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.filter)
)
def replay_webhook(ports: FromPorts, webhook_id: PathId, data: JSONBody[Replay]) -> Webhook:
    """Replay a webhook.

    Sends it that change and what comes after it again, under the same message ids. A webhook that is paused or has
    failed stays so until it is resumed.
    """
    return ports.kb.webhooks.replay(webhook_id, data.from_seq)


@post(
    "/webhooks/{webhook_id:int}/test",
    status_code=200,
    **in_thread(Right.edit, Limiter.long_reads, scoped=CorpusLimit.filter),
)
def test_webhook(ports: FromPorts, webhook_id: PathId) -> WebhookDelivery:
    """Test a webhook.

    Sends it a signed message of type `test` now, whatever its state, and tells what came of it.
    """
    return ports.kb.webhooks.test(webhook_id)


@delete("/webhooks/{webhook_id:int}", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.filter))
def remove_webhook(ports: FromPorts, webhook_id: PathId) -> Webhook:
    """Remove a webhook.

    Nothing is sent to it any more. It cannot be brought back; another one has another secret.
    """
    return ports.kb.webhooks.remove(webhook_id)


HANDLERS = (
    list_webhooks,
    read_webhook,
    add_webhook,
    pause_webhook,
    resume_webhook,
    replay_webhook,
    test_webhook,
    remove_webhook,
)
