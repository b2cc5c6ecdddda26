"""Jobs: queues long work, shows how far it is, and cancels it. A verb is one transaction."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

import msgspec
from sqlalchemy import Connection, Engine, delete, exists, func, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, refusals
from colmlm.kb.facts import suppression
from colmlm.kb.jobs import tickets
from colmlm.kb.jobs.kinds import WriteSnapshot
from colmlm.kb.jobs.records import MAX_ID, STATES, UNFINISHED, JobRecord, Work
from colmlm.kb.jobs.tickets import WorkerState, job_record
from colmlm.kb.jobs.uploads import Uploads
from colmlm.kb.log import audit
from colmlm.kb.log.audit import mark_change, signature_of
from colmlm.kb.lookup import shared
from colmlm.kb.principal import current_origin
from colmlm.kb.removal import quotations
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import waits
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import is_turn_to_ask, retry_on_contention
from colmlm.kb.tables import JobRow


class Jobs:
    """The jobs of a knowledge base. `kb.jobs.worker.Worker` runs them, in any process of the same home."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.uploads = Uploads.of(store.settings)

    @retry_on_contention
    def submit(self, work: Work, *, actor: str) -> JobRecord:
        """Queue this work. Raises `UploadNotFound` where a file that it reads is missing."""
        audit.check_name("actor", actor)
        asked_in = current_origin()
        for upload_id in work.uploads:
            self.uploads.file(upload_id)
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            job = JobRow(
                kind=work.kind,
                arguments=msgspec.to_builtins(work),
                actor=signature_of(actor).actor,
                principal=asked_in.principal.to_json(),
                request_id=asked_in.request_id,
                state="queued",
            )
            session.add(job)
            session.flush()
            quotations.redact_job(session, job)
            tickets.issue_ticket(session, job, work)
            mark_change(
                session, audit.head_seq(session)
            )  # so that a repeated request with one idempotency key queues it once
            session.flush()
            session.refresh(job)
            return job_record(job)

    def share_snapshots(self, changes: int = shared.FAR_AHEAD) -> JobRecord | None:
        """Queue a job to share a snapshot if the last is `changes` changes old; None if not, or one is unfinished."""
        if self.store.settings.shared_snapshots is None:
            return None
        with self.store.sessions.begin() as session:
            unfinished = exists().where(JobRow.kind == WriteSnapshot.kind, JobRow.state.in_(UNFINISHED))
            if (
                not shared.is_snapshot_old(session, changes)
                or not is_turn_to_ask(session)
                or session.scalar(select(unfinished))
            ):
                return None
            return self.submit(WriteSnapshot(), actor=self.store.settings.actor)

    def get(self, job_id: int) -> JobRecord:
        with self.store.sessions() as session:
            return job_record(_require_job(session, job_id))

    def list(
        self,
        *,
        kinds: Collection[str] | None = None,
        states: Collection[str] | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[JobRecord]:
        """List jobs, newest first: of these kinds, in these states, and older than job `before` (None: any)."""
        statement = select(JobRow).order_by(JobRow.id.desc()).limit(limit)
        if kinds is not None:
            statement = statement.where(JobRow.kind.in_(kinds))
        if states is not None:
            statement = statement.where(JobRow.state.in_(states))
        if before is not None:
            statement = statement.where(JobRow.id < before)
        with self.store.sessions() as session:
            return [job_record(job) for job in session.scalars(statement)]

    def counts(self) -> dict[str, int]:
        """Count the jobs in each state."""
        with self.store.sessions() as session:
            found = session.execute(
                select(JobRow.state, func.count().label("number")).group_by(JobRow.state)
            ).all()
        counted = {row.state: row.number for row in found}
        return {state: counted.get(state, 0) for state in STATES}

    def counts_by_kind(self) -> dict[tuple[str, str], int]:
        """Count the jobs of each kind and state."""
        number = func.count().label("number")
        with self.store.sessions() as session:
            found = session.execute(
                select(JobRow.kind, JobRow.state, number).group_by(JobRow.kind, JobRow.state)
            ).all()
        return {(row.kind, row.state): row.number for row in found}

    def num_workers(self) -> int:
        """Count the workers with a recent heartbeat. Where there is none, jobs wait."""
        with self.store.sessions() as session:
            return tickets.num_workers(session)

    def num_waiting(self) -> int:
        """Count the queued jobs that have waited so long that no worker seems to take them."""
        with self.store.sessions() as session:
            return tickets.num_waiting(session)

    def lacks_worker(self, state: WorkerState | None) -> bool:
        """Tell whether a worker is lacking, so that jobs are not done; see `kb.jobs.tickets.lacks_worker`."""
        with self.store.sessions() as session:
            return tickets.lacks_worker(session, state)

    @retry_on_contention
    def cancel(self, job_id: int, *, actor: str) -> JobRecord:
        """End a queued job at once, and ask a running one to end, which it does before its next piece of work.

        What a running job has committed stays. Raises `JobFinished`.
        """
        audit.check_name("actor", actor)
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            job = _require_job(session, job_id, lock=True)
            if job.state not in UNFINISHED:
                raise refusals.job_finished(job_id, job.state)
            job.cancelled_by = job.cancelled_by or actor
            session.flush()
            if job.state == "queued":
                tickets.withdraw_ticket(session, job, only_waiting=True)
                tickets.finish_ticket(session, job, "cancelled")
            record = job_record(job)
        if record.is_over:
            self.uploads.discard(record.kind, record.arguments)
        return record


def _require_job(session: Session, job_id: int, *, lock: bool = False) -> JobRow:
    job = session.get(JobRow, job_id, with_for_update=lock) if 0 < job_id <= MAX_ID else None
    if job is None:
        raise refusals.job_not_found(job_id)
    return job


# A lease: a worker's hold on one job while it runs it, and the only way to write to the job.
#
# It has a connection and a thread of its own, which store how far the work is, notice a cancellation, and
# keep the advisory lock that shows that the worker is alive. Where the connection breaks, or another worker
# has the job, the lease is lost, and the work ends at its next step without writing anything.

BEAT_SECONDS = 1.0

_LOCK = text("SELECT pg_advisory_lock(hashtextextended('ticket of colmlm ' || CAST(:ticket AS bigint), 0))")
_log = logging.getLogger(__name__)


class JobStopped(BaseException):
    """Raised where a job should stop. It is no `Exception`, so that no error handler catches it."""


class JobCancelled(JobStopped):
    """Raised where somebody cancelled the job."""


class JobHandedBack(JobStopped):
    """Raised where the worker is stopping, so that another one continues the job."""


class LeaseLost(JobStopped):
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
        """Set the job to running and give its lease; None where the job was cancelled, or has another ticket."""
        connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            connection.detach()  # so that `close` closes it for good, which releases the lock
            if (found := _start(connection, job_id, ticket)) is None:
                connection.close()
                return None
        except BaseException:  # also where it is interrupted: the connection holds the lock of the job
            connection.close()
            raise
        lease = cls(connection, ticket, job_record(found), handing_back, beat_seconds)
        lease._thread = threading.Thread(target=lease._beat, name=f"lease {job_id}", daemon=True)
        lease._thread.start()
        return lease

    def progress(self, done: int, total: int | None = None, message: str | None = None) -> None:
        """Note how far the work is, and raise as `check` does. It is cheap, so it may be called often."""
        self._far = (done, total, message)
        self.check()

    def check(self) -> None:
        """Raise `JobStopped` where the work should not go on. To be called where nothing is half done."""
        if self.lost:
            raise LeaseLost
        if self.cancelled:
            raise JobCancelled
        if self.handing_back():
            raise JobHandedBack

    def settle(self, state: str, *, result: Any = None, error: Any = None) -> bool:
        """End the job with this state and outcome. Give False where another worker has it by now."""
        self._stop()
        done, total, message = self._far
        if state == "succeeded":
            total = done if total is None else total
        mine = self._update_own_job().values(
            state=state, result=result, error=error, done=done, total=total, message=message,
            finished_at=func.clock_timestamp(), heartbeat_at=func.clock_timestamp(),
        )  # fmt: skip
        try:
            return not self.lost and self._store_outcome(mine.returning(JobRow))
        finally:
            self.connection.close()

    def _store_outcome(self, outcome: Any) -> bool:
        """Store the job's outcome, with texts redacted that were erased meanwhile; False if another worker has it."""
        with Session(self.connection.engine) as session, session.begin():
            suppression.hold_off_erasure(session)
            job: JobRow | None = session.scalar(outcome)
            if job is not None:
                quotations.redact_job(session, job)
        return job is not None

    def close(self) -> None:
        """Release the job as it is, so that it counts as running without a worker, and is taken up again."""
        self._stop()
        self.connection.close()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(self.beat_seconds):
            done, total, message = self._far
            beat = self._update_own_job().values(
                done=done, total=total, message=message, heartbeat_at=func.clock_timestamp()
            )
            try:
                heard = self.connection.execute(beat.returning(JobRow.cancelled_by)).one_or_none()
            except Exception as error:  # noqa: BLE001 - without a beat another worker may take the job
                said, fault = "job %d: its lease is lost: %s", waits.fault_of_server(error)
                _log.warning(said, self.job.job_id, waits.cause_of(error), exc_info=fault)
                heard = None
            if heard is None:
                self.lost = True
                return
            self.cancelled = heard.cancelled_by is not None

    def _update_own_job(self) -> Any:
        return update(JobRow).where(
            JobRow.id == self.job.job_id, JobRow.ticket == self.ticket, JobRow.state == "running"
        )


def _start(connection: Connection, job_id: int, ticket: int) -> Any:
    """Set a job that is queued with this ticket to running, under the ticket's lock, and give its row, else None."""
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


# Pruning: removes jobs that ended long ago. Their changes stay in the change log, with who asked for them.

LONGEST = timedelta(days=36_500)


def prune_jobs(kb: KnowledgeBase, older_than: timedelta) -> Counter[str]:
    """Remove jobs that ended longer than `older_than` ago by the database's clock, and count them by state.

    The files that jobs read are removed when they end; where that failed, it is done now. Raises `InvalidValue`.
    """
    if not timedelta(0) <= older_than <= LONGEST:
        raise InvalidValue("age of jobs", f"{older_than} is not between 0 and {LONGEST.days} days")
    ended = (JobRow.state.not_in(UNFINISHED), JobRow.finished_at < func.clock_timestamp() - older_than)
    gone = delete(JobRow).where(*ended).returning(JobRow.kind, JobRow.arguments, JobRow.state)
    with kb.sessions.begin() as session:
        found = session.execute(gone).all()
    uploads = Uploads.of(kb.settings)
    for job in found:
        uploads.discard(job.kind, job.arguments)
    return Counter(job.state for job in found)
