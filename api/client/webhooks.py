"""Webhooks of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colmlm.api.client.api import Api
from colmlm.api.client.only_there import refuse
from colmlm.api.wire.answers import WebhookWithSecret
from colmlm.kb.webhooks.records import Webhook, WebhookDelivery


@dataclass(frozen=True, slots=True)
class RemoteWebhooks:
    """The verbs of `api.nouns.webhooks.WebhookVerbs` over the API, which has no dry run for them."""

    api: Api

    def all(self) -> list[Webhook]:
        return self.api.listed("/webhooks", Webhook, "webhooks")

    def show(self, webhook_id: int) -> Webhook:
        return self.api.get(f"/webhooks/{webhook_id}", Webhook)

    def add(
        self, url: str, *, kinds: Sequence[str], form: str, since: int | None, dry_run: bool
    ) -> tuple[str, Webhook]:
        refuse(dry_run=dry_run)
        asked = {"url": url, "kinds": list(kinds), "format": form, "since": since}
        made = self.api.edit("/webhooks", WebhookWithSecret, asked)
        return made.secret, made.webhook

    def pause(self, webhook_id: int) -> Webhook:
        return self.api.edit(f"/webhooks/{webhook_id}/pause", Webhook)

    def resume(self, webhook_id: int) -> Webhook:
        return self.api.edit(f"/webhooks/{webhook_id}/resume", Webhook)

    def replay(self, webhook_id: int, first: int) -> Webhook:
        return self.api.edit(f"/webhooks/{webhook_id}/replay", Webhook, {"from_seq": first})

    def test(self, webhook_id: int) -> WebhookDelivery:
        return self.api.once(f"/webhooks/{webhook_id}/test", WebhookDelivery, None)

    def remove(self, webhook_id: int, *, dry_run: bool) -> Webhook:
        refuse(dry_run=dry_run)
        return self.api.edit(f"/webhooks/{webhook_id}", Webhook, method="DELETE")
