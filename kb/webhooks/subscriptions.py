"""Subscriptions as they are stored: added, paused, resumed, replayed, removed. The functions never commit.

Each of these is a change of the log. It names the receiver's host and not its whole address, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import httpx2
from sqlalchemy import Select, select
from sqlalchemy.orm import Session, undefer

from colmlm.kb.errors import InvalidValue, WebhookNotFound, WebhookState
from colmlm.kb.log import audit
from colmlm.kb.log.origin import current
from colmlm.kb.tables import WebhookRow
from colmlm.kb.webhooks.messages import new_secret
from colmlm.kb.webhooks.records import FORMATS, Format, Webhook

MAX_ID = 2**63 - 1


def add(
    session: Session, url: httpx2.URL, kinds: Sequence[str], form: str, since: int | None, actor: str | None
) -> WebhookRow:
    """Subscribes a receiver to what comes after change `since` (None: after this one). Raises `InvalidValue`."""
    if form not in FORMATS:
        raise InvalidValue("format of the webhook", f"{form!r} is not one of {', '.join(FORMATS)}")
    if unknown := [kind for kind in kinds if kind not in audit.KINDS]:
        known = ", ".join(audit.KINDS)
        raise InvalidValue(
            "kinds of the webhook", f"no change is of kind {unknown[0]!r}; the kinds are {known}"
        )
    pending = _begin(session, actor, f"send changes to {url.host}")
    if since is not None:
        audit.require_change(session, since)
    row = WebhookRow(
        url=str(url),
        kinds=list(dict.fromkeys(kinds)),
        format=form,
        secret=new_secret(),
        delivered_seq=pending.seq if since is None else since,
    )
    session.add(row)
    _append(session, pending, "add-webhook", row)
    return row


def pause(session: Session, webhook_id: int, actor: str | None) -> WebhookRow:
    """Has nothing more sent to a receiver until it is resumed. Raises `WebhookNotFound` or `WebhookState`."""
    return _turn(session, webhook_id, "paused", "pause-webhook", actor)


def resume(session: Session, webhook_id: int, actor: str | None) -> WebhookRow:
    """Goes on where it stopped, at once and with no failure counted. Raises `WebhookNotFound` or `WebhookState`."""
    return _turn(session, webhook_id, "active", "resume-webhook", actor)


def _turn(session: Session, webhook_id: int, state: str, kind: str, actor: str | None) -> WebhookRow:
    pending = _begin(session, actor, f"{kind.partition('-')[0]} webhook {webhook_id}")
    row = held(session, webhook_id)
    if row.state == state and not row.attempts:  # one that fails may be told to try again now
        raise WebhookState(webhook_id, state)
    row.state = state
    _forget_failures(row)
    _append(session, pending, kind, row)
    return row


def replay(session: Session, webhook_id: int, first: int, actor: str | None) -> WebhookRow:
    """Sends change `first` and what comes after it, again or for the first time; what is before is passed over.

    Raises `WebhookNotFound` or `NoSuchChange`.
    """
    pending = _begin(session, actor, f"send webhook {webhook_id} the changes from {first} on")
    row = held(session, webhook_id)
    audit.require_change(session, first - 1)
    row.delivered_seq = first - 1
    _forget_failures(row)
    _append(session, pending, "replay-webhook", row)
    return row


def remove(session: Session, webhook_id: int, actor: str | None) -> WebhookRow:
    """Ends a subscription for good. Raises `WebhookNotFound`."""
    pending = _begin(session, actor, f"remove webhook {webhook_id}")
    row = held(session, webhook_id)
    _append(session, pending, "remove-webhook", row)
    session.delete(row)
    return row


def held(session: Session, webhook_id: int) -> WebhookRow:
    """Gives the row of a webhook, locked, so that two edits of it take turns. Raises `WebhookNotFound`."""
    return _only(session, webhook_id, select(WebhookRow).with_for_update())


def found(session: Session, webhook_id: int) -> WebhookRow:
    """Gives the row of a webhook to read, and waits for no edit of it. Raises `WebhookNotFound`."""
    return _only(session, webhook_id, select(WebhookRow))


def listed(session: Session, after: int = 0, limit: int | None = None) -> list[Webhook]:
    """Gives the webhooks past the id `after`, up to `limit`, in the order in which they were added."""
    statement = select(WebhookRow).where(WebhookRow.id > after).order_by(WebhookRow.id).limit(limit)
    return [as_record(row) for row in session.scalars(statement)]


def with_secret(session: Session, webhook_id: int) -> WebhookRow:
    """Gives the row of a webhook with its secret, for who sends. Raises `WebhookNotFound`."""
    return _only(session, webhook_id, select(WebhookRow).options(undefer(WebhookRow.secret)))


def _only(session: Session, webhook_id: int, rows: Select[WebhookRow]) -> WebhookRow:
    row = session.scalar(rows.where(WebhookRow.id == webhook_id)) if 0 < webhook_id <= MAX_ID else None
    if row is None:
        raise WebhookNotFound(webhook_id)
    return row


def as_record(row: WebhookRow) -> Webhook:
    """Gives a webhook as it is shown."""
    return Webhook(
        webhook_id=row.id,
        url=row.url,
        kinds=tuple(row.kinds),
        format=cast(Format, row.format),
        state=row.state,
        delivered_seq=row.delivered_seq,
        attempts=row.attempts,
        created_at=row.created_at.astimezone(UTC),
        delivered_at=_utc(row.delivered_at),
        failing_since=_utc(row.failing_since),
        next_attempt_at=_utc(row.next_attempt_at),
        last_error=row.last_error,
    )


def _forget_failures(row: WebhookRow) -> None:
    row.attempts, row.failing_since, row.next_attempt_at, row.last_error = 0, None, None, None


def _begin(session: Session, actor: str | None, reason: str) -> audit.Pending:
    """Takes the log's lock before any row is locked, as every edit does."""
    return audit.begin(session, actor or current().principal.name, reason)


def _append(session: Session, pending: audit.Pending, kind: str, row: WebhookRow) -> None:
    session.flush()
    kept: dict[str, Any] = {
        "webhook_id": row.id,
        "host": httpx2.URL(row.url).netloc.decode(),
        "kinds": row.kinds,
        "format": row.format,
        "state": row.state,
        "delivered_seq": row.delivered_seq,
    }
    audit.append(session, pending, kind, payload={"webhook": kept})
    session.refresh(row)


def _utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)
