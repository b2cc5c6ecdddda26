"""A lease: a worker's hold on one job while it runs it, and the only way to write to the job.

It has a connection and a thread of its own, which store how far the work is, notice a cancellation, and keep the
advisory lock that shows that the worker is alive. Where the connection breaks, or another worker has the job,
the lease is lost, and the work ends at its next step without writing anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import Connection, Engine, func, text, update
from sqlalchemy.orm import Session

from colmlm.kb.facts import quotations, suppression
from colmlm.kb.jobs.records import JobRecord, record_of
from colmlm.kb.store import outages
from colmlm.kb.tables import JobRow

BEAT_SECONDS = 1.0

_LOCK = text("SELECT pg_advisory_lock(hashtextextended('ticket of colmlm ' || CAST(:ticket AS bigint), 0))")
_log = logging.getLogger(__name__)


class Interrupted(BaseException):
    """Raised where the work of a job should end. It is no `Exception`, so that no handler of errors catches it."""


class Cancelled(Interrupted):
    """Raised where somebody cancelled the job."""


class HandedBack(Interrupted):
    """Raised where the worker is stopping, so that another one continues the job."""


class LeaseLost(Interrupted):
    """Raised where another worker has the job by now."""


@dataclass(slots=True)
class Lease:
    """A worker's hold on a job for one run. `take` makes it; `settle` or `close` ends it.

    `handing_back` tells whether this worker should hand its jobs back.
    """

    connection: Connection
    ticket: int
    job: JobRecord
    handing_back: Callable[[], bool]
    beat_seconds: float
    cancelled: bool = False
    lost: bool = False
    _far: tuple[int, int | None, str | None] = (0, None, None)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @classmethod
    def take(
        cls,
        engine: Engine,
        job_id: int,
        ticket: int,
        *,
        handing_back: Callable[[], bool],
        beat_seconds: float = BEAT_SECONDS,
    ) -> Self | None:
        """Sets the job to running. Gives None where this ticket is not valid: the job was cancelled, or has another."""
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            connection.detach()  # so that `close` closes it for good, which releases the lock
            if (found := _start(connection, job_id, ticket)) is None:
                connection.close()
                return None
        except BaseException:
            connection.close()
            raise
        lease = cls(connection, ticket, record_of(found), handing_back, beat_seconds)
        lease._thread = threading.Thread(target=lease._beat, name=f"lease {job_id}", daemon=True)
        lease._thread.start()
        return lease

    def progress(self, done: int, total: int | None = None, message: str | None = None) -> None:
        """Notes how far the work is, and raises as `check` does. It is cheap, so it may be called often."""
        self._far = (done, total, message)
        self.check()

    def check(self) -> None:
        """Raises `Interrupted` where the work should not go on. To be called where nothing is half done."""
        if self.lost:
            raise LeaseLost
        if self.cancelled:
            raise Cancelled
        if self.handing_back():
            raise HandedBack

    def settle(self, state: str, *, result: Any = None, error: Any = None) -> bool:
        """Ends the job with this state and outcome. Gives False where another worker has it by now."""
        self._stop()
        done, total, message = self._far
        if state == "succeeded":
            total = done if total is None else total
        mine = self._mine().values(
            state=state, result=result, error=error, done=done, total=total, message=message,
            finished_at=func.clock_timestamp(), heartbeat_at=func.clock_timestamp(),
        )  # fmt: skip
        try:
            return not self.lost and self._ended_as(mine.returning(JobRow))
        finally:
            self.connection.close()

    def _ended_as(self, outcome: Any) -> bool:
        """Stores the outcome of the job, redacted of what was erased meanwhile; False where another worker has it."""
        with Session(self.connection.engine) as session, session.begin():
            suppression.hold_off_erasure(session)
            job: JobRow | None = session.scalar(outcome)
            if job is not None:
                quotations.redact_job(session, job)
        return job is not None

    def close(self) -> None:
        """Releases the job as it is, so that it counts as running without a worker, and is taken up again."""
        self._stop()
        self.connection.close()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(self.beat_seconds):
            done, total, message = self._far
            beat = self._mine().values(
                done=done, total=total, message=message, heartbeat_at=func.clock_timestamp()
            )
            try:
                heard = self.connection.execute(beat.returning(JobRow.cancelled_by)).one_or_none()
            except Exception as error:  # noqa: BLE001 - without a beat another worker may take the job
                said, fault = "job %d: its lease is lost: %s", outages.fault(error)
                _log.warning(said, self.job.job_id, outages.cause(error), exc_info=fault)
                heard = None
            if heard is None:
                self.lost = True
                return
            self.cancelled = heard.cancelled_by is not None

    def _mine(self) -> Any:
        return update(JobRow).where(
            JobRow.id == self.job.job_id, JobRow.ticket == self.ticket, JobRow.state == "running"
        )


def _start(connection: Connection, job_id: int, ticket: int) -> Any:
    """Sets a job that is queued with this ticket to running, under the ticket's lock; gives its row, or None."""
    connection.execute(_LOCK, {"ticket": ticket})
    started = (
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.ticket == ticket, JobRow.state == "queued")
        .values(
            state="running",
            attempts=JobRow.attempts + 1,
            started_at=func.coalesce(JobRow.started_at, func.clock_timestamp()),
            heartbeat_at=func.clock_timestamp(),
        )
        .returning(*JobRow.__table__.columns)
    )
    return connection.execute(started).one_or_none()
