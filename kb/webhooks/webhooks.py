"""The verbs of webhooks: who is told of changes, and whether that works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from colmlm.kb.log import audit
from colmlm.kb.store.store import Store
from colmlm.kb.webhooks import messages, subscriptions
from colmlm.kb.webhooks.reach import Reach
from colmlm.kb.webhooks.records import Webhook, WebhookDelivery
from colmlm.kb.webhooks.sending import Sender


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The webhooks of a store. A dry run is rolled back. `actor` is by default the principal."""

    store: Store

    @property
    def reach(self) -> Reach:
        """The addresses that messages may be sent to."""
        return Reach.of(self.store.settings.webhook_networks)

    def all(self, *, after: int = 0, limit: int | None = None) -> list[Webhook]:
        """Lists webhooks past the id `after`, in the order in which they were added."""
        with self.store.sessions() as session:
            return subscriptions.listed(session, after, limit)

    def show(self, webhook_id: int) -> Webhook:
        """Gives one webhook. Raises `WebhookNotFound`."""
        with self.store.sessions() as session:
            return subscriptions.as_record(subscriptions.found(session, webhook_id))

    def add(
        self,
        url: str,
        *,
        kinds: Sequence[str] = (),
        form: str = "standard",
        since: int | None = None,
        actor: str | None = None,
        dry_run: bool = False,
    ) -> tuple[str, Webhook]:
        """Subscribes a receiver, and gives it with its secret, which can't be read again.

        It is sent what comes after change `since` (None: after now), of these kinds (none: of all). Raises
        `WebhookRefused` where nothing may be sent there, `InvalidValue` or `NoSuchChange`.
        """
        checked, _ = self.reach.target(url)
        with self._session(dry_run) as session:
            row = subscriptions.add(session, checked, kinds, form, since, actor)
            made = subscriptions.as_record(row)
            return messages.shown(subscriptions.with_secret(session, row.id).secret), made

    def pause(self, webhook_id: int, *, actor: str | None = None) -> Webhook:
        """Has nothing more sent to a receiver until it is resumed. Raises `WebhookNotFound` or `WebhookState`."""
        with self._session() as session:
            return subscriptions.as_record(subscriptions.pause(session, webhook_id, actor))

    def resume(self, webhook_id: int, *, actor: str | None = None) -> Webhook:
        """Goes on where it stopped, at once, also where it fails. Raises `WebhookNotFound` or `WebhookState`."""
        with self._session() as session:
            return subscriptions.as_record(subscriptions.resume(session, webhook_id, actor))

    def replay(self, webhook_id: int, first: int, *, actor: str | None = None) -> Webhook:
        """Goes on with change `first`, sent before or not. Raises `WebhookNotFound` or `NoSuchChange`."""
        with self._session() as session:
            return subscriptions.as_record(subscriptions.replay(session, webhook_id, first, actor))

    def remove(self, webhook_id: int, *, actor: str | None = None, dry_run: bool = False) -> Webhook:
        """Ends a webhook for good. Raises `WebhookNotFound`."""
        with self._session(dry_run) as session:
            return subscriptions.as_record(subscriptions.remove(session, webhook_id, actor))

    def test(self, webhook_id: int) -> WebhookDelivery:
        """Sends a message that is about no change, now, and tells what came of it. Raises `WebhookNotFound`."""
        with self.store.sessions() as session:
            row = subscriptions.with_secret(session, webhook_id)
            form = subscriptions.as_record(row).format
            message = messages.of_test(webhook_id, audit.database_id(session), form)
        with Sender(row.url, row.secret, self.reach) as sender:
            return sender.send(message).delivery

    @contextmanager
    def _session(self, dry_run: bool = False) -> Iterator[Session]:
        with self.store.sessions() as session:
            yield session
            session.rollback() if dry_run else session.commit()
