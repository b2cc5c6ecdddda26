"""The verbs of webhooks: who is sent the changes, and whether that works."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from colmlm.kb.log import audit
from colmlm.kb.store import waits
from colmlm.kb.store.store import Store
from colmlm.kb.webhooks import sending
from colmlm.kb.webhooks.messages import format_secret, message_of_change, message_of_test
from colmlm.kb.webhooks.records import Webhook, WebhookDelivery
from colmlm.kb.webhooks.sending import (
    Position,
    Reach,
    RetryPolicy,
    Sender,
    add_subscription,
    list_subscriptions,
    pause_subscription,
    read_subscription,
    remove_subscription,
    replay_deliveries,
    resume_subscription,
    subscription_with_secret,
    webhook_record,
)


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The webhooks of a store. A dry run is rolled back. `actor` is by default the principal."""

    store: Store

    @property
    def reach(self) -> Reach:
        """The addresses that messages may be sent to."""
        return Reach.of(self.store.settings.webhook_networks)

    def all(self, *, after: int = 0, limit: int | None = None) -> list[Webhook]:
        """List webhooks past the id `after`, in the order in which they were added."""
        with self.store.sessions() as session:
            return list_subscriptions(session, after, limit)

    def show(self, webhook_id: int) -> Webhook:
        """Give one webhook. Raises `WebhookNotFound`."""
        with self.store.sessions() as session:
            return webhook_record(read_subscription(session, webhook_id))

    def add(
        self,
        url: str,
        *,
        kinds: Sequence[str] = (),
        form: str = "standard",
        since: int | None = None,
        corpora: Sequence[str] = (),
        actor: str | None = None,
        dry_run: bool = False,
    ) -> tuple[str, Webhook]:
        """Subscribe a receiver, and give it with its secret, which can't be read again.

        It is sent what comes after change `since` (None: after now), of these kinds (none: of all) and corpora (none:
        of all, or of those of a scoped caller). Raises `WebhookRefused` where nothing may be sent there,
        `InvalidValue`, `CorpusNotFound` or `NoSuchChange`.
        """
        checked, _ = self.reach.target(url)
        with self._session(dry_run) as session:
            row = add_subscription(session, checked, kinds, form, since, actor, corpora)
            made = webhook_record(row)
            return format_secret(subscription_with_secret(session, row.id).secret), made

    def pause(self, webhook_id: int, *, actor: str | None = None) -> Webhook:
        """Pause a webhook: nothing is sent until it is resumed. Raises `WebhookNotFound` or `WebhookState`."""
        with self._session() as session:
            return webhook_record(pause_subscription(session, webhook_id, actor))

    def resume(self, webhook_id: int, *, actor: str | None = None) -> Webhook:
        """Resume a webhook at once where it stopped, also a failing one. Raises `WebhookNotFound` or `WebhookState`."""
        with self._session() as session:
            return webhook_record(resume_subscription(session, webhook_id, actor))

    def replay(self, webhook_id: int, first: int, *, actor: str | None = None) -> Webhook:
        """Send the changes from `first` on, sent before or not. Raises `WebhookNotFound` or `NoSuchChange`."""
        with self._session() as session:
            return webhook_record(replay_deliveries(session, webhook_id, first, actor))

    def remove(self, webhook_id: int, *, actor: str | None = None, dry_run: bool = False) -> Webhook:
        """End a webhook for good. Raises `WebhookNotFound`."""
        with self._session(dry_run) as session:
            return webhook_record(remove_subscription(session, webhook_id, actor))

    def test(self, webhook_id: int) -> WebhookDelivery:
        """Send a test message, about no change, and give the outcome. Raises `WebhookNotFound`."""
        with self.store.sessions() as session:
            row = subscription_with_secret(session, webhook_id)
            form = webhook_record(row).format
            message = message_of_test(webhook_id, audit.database_id(session), form)
        with Sender(row.url, row.secret, self.reach) as sender:
            return sender.send(message).delivery

    @contextmanager
    def _session(self, dry_run: bool = False) -> Iterator[Session]:
        with self.store.sessions() as session:
            yield session
            session.rollback() if dry_run else session.commit()


# Delivers changes to the receivers of webhooks, in the order of the log and at least once.
#
# A change is sent when all before it were taken, and is noted as delivered when its receiver has answered.
# Who is killed in between sends it again, as the same message.

AT_ONCE = 8  # receivers that one process sends to at the same time
IN_TURN = 100  # changes that are sent to one of them before another has its turn
LONGEST_REST = 60.0  # seconds that a process waits after errors of its own or of the database

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Deliverer:
    """Delivers due changes until told to stop. Several processes may do so at once, each to other receivers."""

    store: Store
    persistence: RetryPolicy = field(default_factory=RetryPolicy)
    poll_seconds: float = 1.0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _at_work: set[int] = field(default_factory=set)
    _rests: dict[int, tuple[int, float]] = field(
        default_factory=dict
    )  # errors in a row, and until when it rests

    def stop(self) -> None:
        """Begin no more requests. `run` waits for those under way."""
        self._stopping.set()

    def run(self) -> None:
        """Deliver until `stop` is called."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook") as pool:
            while not self._stopping.wait(self.poll_seconds):
                try:
                    due = self._due_webhooks()
                except Exception as error:  # noqa: BLE001 - it goes on delivering for as long as the worker runs
                    waits.log_outage(_log, "cannot look for changes to deliver, will try again", error)
                    continue
                for webhook_id in set(due) - self._at_work:
                    if time.monotonic() >= self._rests.get(webhook_id, (0, 0.0))[1]:
                        self._at_work.add(webhook_id)
                        pool.submit(self._deliver_in_turn, pool, webhook_id)

    def run_once(self) -> None:
        """Deliver what is due now, to one receiver after the other."""
        for webhook_id in self._due_webhooks():
            self.deliver(webhook_id)

    def _due_webhooks(self) -> list[int]:
        with self.store.sessions() as session:
            return sending.due_webhooks(session)

    def _deliver_in_turn(self, pool: ThreadPoolExecutor, webhook_id: int) -> None:
        has_more = False
        try:
            has_more = self.deliver(webhook_id, IN_TURN)
            self._rests.pop(webhook_id, None)
        except Exception as error:  # noqa: BLE001 - it must not keep the others from what they are sent
            self._rest(webhook_id)
            waits.log_outage(_log, f"cannot deliver to webhook {webhook_id}", error)
        if not has_more or self._stopping.is_set():
            self._at_work.discard(webhook_id)
            return
        with suppress(RuntimeError):  # the pool was ended just now
            pool.submit(self._deliver_in_turn, pool, webhook_id)

    def _rest(self, webhook_id: int) -> None:
        """Leave a receiver alone for a time, longer after each error, so that not every poll sends it the same."""
        errors = self._rests.get(webhook_id, (0, 0.0))[0] + 1
        seconds = min(self.persistence.wait(errors, None).total_seconds(), LONGEST_REST)
        self._rests[webhook_id] = (errors, time.monotonic() + seconds)

    def deliver(self, webhook_id: int, most: int | None = None) -> bool:
        """Send a receiver up to `most` changes until it fails to take one, and say whether it took that many.

        Nothing is sent where another process delivers to the receiver, or nothing is due.
        """
        with sending.lock_position(self.store, webhook_id) as position:
            return position is not None and self._deliver(position, most)

    def _deliver(self, position: Position, most: int | None) -> bool:
        webhook, database = position.webhook, audit.database_id(position.session)
        reach = Reach.of(self.store.settings.webhook_networks)
        with Sender(webhook.url, position.secret, reach) as sender:
            taken = 0
            for change in position.changes_ahead(most):
                if self._stopping.is_set():
                    return False
                attempt = sender.send(message_of_change(change, database, webhook.format))
                if (fault := attempt.delivery.error) is not None:
                    state = position.note_failed(attempt, self.persistence) or "no longer there as it was"
                    said = "webhook %d did not take change %d: %s; it is %s"
                    _log.warning(said, webhook.webhook_id, change.seq, fault, state)
                    return False
                if not position.note_delivered(change.seq):
                    return False
                taken += 1
        return taken == most
