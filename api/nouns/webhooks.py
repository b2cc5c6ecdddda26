"""The verbs of webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from colmlm.kb.webhooks.records import Webhook, WebhookDelivery


class WebhookVerbs(Protocol):
    """What webhooks can be asked for, as `kb.webhooks.webhooks.Webhooks` describes it. A dry run is rolled back."""

    def all(self) -> list[Webhook]: ...

    def show(self, webhook_id: int) -> Webhook: ...

    def add(
        self, url: str, *, kinds: Sequence[str], form: str, since: int | None, dry_run: bool
    ) -> tuple[str, Webhook]:
        """Adds a webhook. Gives its secret, which nothing gives again, and its record."""
        ...

    def pause(self, webhook_id: int) -> Webhook: ...

    def resume(self, webhook_id: int) -> Webhook: ...

    def replay(self, webhook_id: int, first: int) -> Webhook: ...

    def test(self, webhook_id: int) -> WebhookDelivery: ...

    def remove(self, webhook_id: int, *, dry_run: bool) -> Webhook: ...
