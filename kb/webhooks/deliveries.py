"""Delivers changes to the receivers of webhooks, in the order of the log and at least once.

A change is sent when all before it were taken, and is noted as delivered when its receiver has answered. Who is killed
in between sends it again, as the same message.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from colmlm.kb.log import audit
from colmlm.kb.store import outages
from colmlm.kb.store.store import Store
from colmlm.kb.webhooks import messages, positions
from colmlm.kb.webhooks.positions import Persistence, Position
from colmlm.kb.webhooks.reach import Reach
from colmlm.kb.webhooks.sending import Sender

AT_ONCE = 8  # receivers that one process sends to at the same time
IN_TURN = 100  # changes that are sent to one of them before another has its turn
LONGEST_REST = 60.0  # seconds that a process waits after errors of its own or of the database

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Deliverer:
    """Delivers what is due until told to stop. Several processes may do so at once, each to other receivers."""

    store: Store
    persistence: Persistence = field(default_factory=Persistence)
    poll_seconds: float = 1.0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _at_work: set[int] = field(default_factory=set)
    _rests: dict[int, tuple[int, float]] = field(
        default_factory=dict
    )  # errors in a row, and until when it rests

    def stop(self) -> None:
        """Sends nothing more; what is being sent is awaited by `run`."""
        self._stopping.set()

    def run(self) -> None:
        """Delivers until `stop` is called."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook") as pool:
            while not self._stopping.wait(self.poll_seconds):
                try:
                    due = self._due()
                except Exception as error:  # noqa: BLE001 - it goes on delivering for as long as the worker runs
                    outages.tell(_log, "cannot look for changes to deliver, will try again", error)
                    continue
                for webhook_id in set(due) - self._at_work:
                    if time.monotonic() >= self._rests.get(webhook_id, (0, 0.0))[1]:
                        self._at_work.add(webhook_id)
                        pool.submit(self._work, pool, webhook_id)

    def run_once(self) -> None:
        """Delivers what is due now, to one receiver after the other."""
        for webhook_id in self._due():
            self.deliver(webhook_id)

    def _due(self) -> list[int]:
        with self.store.sessions() as session:
            return positions.due(session)

    def _work(self, pool: ThreadPoolExecutor, webhook_id: int) -> None:
        has_more = False
        try:
            has_more = self.deliver(webhook_id, IN_TURN)
            self._rests.pop(webhook_id, None)
        except Exception as error:  # noqa: BLE001 - it must not keep the others from what they are sent
            self._rest(webhook_id)
            outages.tell(_log, f"cannot deliver to webhook {webhook_id}", error)
        if not has_more or self._stopping.is_set():
            self._at_work.discard(webhook_id)
            return
        with suppress(RuntimeError):  # the pool was ended just now
            pool.submit(self._work, pool, webhook_id)

    def _rest(self, webhook_id: int) -> None:
        """Leaves a receiver alone, longer after each error, so that it is not sent the same at each poll."""
        errors = self._rests.get(webhook_id, (0, 0.0))[0] + 1
        seconds = min(self.persistence.wait(errors, None).total_seconds(), LONGEST_REST)
        self._rests[webhook_id] = (errors, time.monotonic() + seconds)

    def deliver(self, webhook_id: int, most: int | None = None) -> bool:
        """Sends a receiver up to `most` changes that are ahead of it, until one is not taken, and says whether it took
        so many that there may be more.

        It does nothing where another process is at it, or nothing is due.
        """
        with positions.held(self.store, webhook_id) as position:
            return position is not None and self._deliver(position, most)

    def _deliver(self, position: Position, most: int | None) -> bool:
        webhook, database = position.webhook, audit.database_id(position.session)
        reach = Reach.of(self.store.settings.webhook_networks)
        with Sender(webhook.url, position.secret, reach) as sender:
            taken = 0
            for change in position.ahead(most):
                if self._stopping.is_set():
                    return False
                attempt = sender.send(messages.of_change(change, database, webhook.format))
                if (fault := attempt.delivery.error) is not None:
                    state = position.note_failed(attempt, self.persistence) or "no longer there as it was"
                    said = "webhook %d did not take change %d: %s; it is %s"
                    _log.warning(said, webhook.webhook_id, change.seq, fault, state)
                    return False
                if not position.note_delivered(change.seq):
                    return False
                taken += 1
        return taken == most
