"""How far a receiver was told: what is ahead of it in the log, and what comes of each attempt, noted in its row.

All of it goes over one connection, which holds the lock of the webhook. Whoever loses the lock loses the connection, so
it can note nothing and goes no further.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, case, func, literal, or_, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import NotFound
from colmlm.kb.log import audit
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.store.store import Store
from colmlm.kb.tables import ChangeRow, WebhookRow
from colmlm.kb.webhooks.records import Webhook
from colmlm.kb.webhooks.sending import GONE, Attempt, as_record, with_secret

PIECE = 100  # changes that are read at once

_LOCK = text("SELECT pg_try_advisory_lock(hashtextextended('webhook of colmlm ' || CAST(:id AS bigint), 0))")
_IS_DUE = and_(
    ~func.pg_is_in_recovery(),  # a standby could note nothing, and the primary has senders of its own
    WebhookRow.state == "active",
    or_(WebhookRow.next_attempt_at.is_(None), WebhookRow.next_attempt_at <= func.clock_timestamp()),
    WebhookRow.delivered_seq < select(func.max(ChangeRow.seq)).scalar_subquery(),
)


@dataclass(frozen=True, slots=True)
class Persistence:
    """How long to wait after a failure, twice as long after each more, and when to give a receiver up."""

    first_wait: timedelta = timedelta(seconds=5)
    longest_wait: timedelta = timedelta(hours=1)
    given_up_after: timedelta = timedelta(days=3)

    def wait(self, failures: int, asked: float | None) -> timedelta:
        """Give the wait after so many failures in a row, somewhat random, and no less than the receiver asked for."""
        waits = min(self.first_wait * 2.0 ** min(failures - 1, 16), self.longest_wait)
        return max(waits * random.uniform(0.9, 1.1), timedelta(seconds=asked or 0))


def due(session: Session) -> list[int]:
    """List the webhooks that have changes ahead of them and need not wait."""
    return list(session.scalars(select(WebhookRow.id).where(_IS_DUE).order_by(WebhookRow.id)))


@contextmanager
def lock_position(store: Store, webhook_id: int) -> Iterator[Position | None]:
    """Give the position of a webhook that is due, for this process alone; None where it is not, or another has it."""
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # so that its end closes it, which releases the lock
        with Session(connection) as session:
            is_mine = session.scalar(_LOCK, {"id": webhook_id}) and webhook_id in due(session)
            yield _position(session, webhook_id) if is_mine else None


def _position(session: Session, webhook_id: int) -> Position | None:
    try:
        row = with_secret(session, webhook_id)
    except NotFound:  # it was removed just now
        return None
    webhook = as_record(row)
    position = Position(session, webhook, row.secret, webhook.delivered_seq, webhook.attempts)
    return position if position.can_note() else None


@dataclass(slots=True)
class Position:
    """Where a webhook is in the log: change `seq` and all before it are done with; `failures` came since in a row.

    What is noted holds only where the webhook is still where this left it, and not removed or replayed.
    """

    session: Session
    webhook: Webhook
    secret: bytes
    seq: int
    failures: int

    def ahead(self, most: int | None) -> Iterator[ChangeRecord]:
        """Yield up to `most` changes of the wanted kinds, in their order, and pass over the others."""
        given = 0
        while most is None or given < most:
            head = audit.head_seq(self.session)
            found = self._read(head)
            yield from found
            given += len(found)
            if len(found) < PIECE:
                self._move(head)
                return

    def _read(self, head: int) -> list[ChangeRecord]:
        wanted = select(ChangeRow).where(ChangeRow.seq > self.seq, ChangeRow.seq <= head)
        if self.webhook.kinds:
            wanted = wanted.where(ChangeRow.kind.in_(self.webhook.kinds))
        rows = self.session.scalars(wanted.order_by(ChangeRow.seq).limit(PIECE))
        return [audit.as_record(row) for row in rows]

    def can_note(self) -> bool:
        """Write the row as it is, before anything is sent, and say whether changes may be sent.

        A database that takes no writes raises here, and so has no message sent again and again that it cannot note.
        """
        return self._write(delivered_seq=self.seq) == "active"

    def note_delivered(self, seq: int) -> bool:
        """Note that the receiver took this change, and say whether it may get the next."""
        self.failures = 0
        nothing = dict.fromkeys(("failing_since", "next_attempt_at", "last_error"))
        return self._move(seq, attempts=0, delivered_at=func.clock_timestamp(), **nothing) == "active"

    def _move(self, seq: int, **more: Any) -> str | None:
        """Move on to a change, and give the state of the webhook; None where it is no longer where it was."""
        state = self._write(delivered_seq=seq, **more)
        self.seq = seq
        return state

    def note_failed(self, attempt: Attempt, persistence: Persistence) -> str | None:
        """Note that the receiver did not take the next change, and give the state of the webhook, as `_move` does."""
        self.failures += 1
        now = func.clock_timestamp()
        since = func.coalesce(WebhookRow.failing_since, now)
        is_over = or_(literal(attempt.delivery.status == GONE), since <= now - persistence.given_up_after)
        return self._write(
            attempts=self.failures,
            failing_since=since,
            next_attempt_at=now + persistence.wait(self.failures, attempt.retry_after),
            last_error=attempt.delivery.error,
            state=case((and_(WebhookRow.state == "active", is_over), "failed"), else_=WebhookRow.state),
        )

    def _write(self, **values: Any) -> str | None:
        here = (WebhookRow.id == self.webhook.webhook_id, WebhookRow.delivered_seq == self.seq)
        written = update(WebhookRow).where(*here).values(values).returning(WebhookRow.state)
        return self.session.scalar(written.execution_options(synchronize_session=False))
