"""Jobs: queues long work, shows how far it is, and cancels it. A verb is one transaction."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import JobFinished, JobNotFound
from colmlm.kb.facts import quotations, suppression
from colmlm.kb.jobs import attendance, tickets
from colmlm.kb.jobs.attendance import WorkerState
from colmlm.kb.jobs.kinds import WriteSnapshot
from colmlm.kb.jobs.records import STATES, UNFINISHED, JobRecord, record_of
from colmlm.kb.jobs.uploads import Uploads
from colmlm.kb.jobs.work import MAX_ID, Work
from colmlm.kb.log import audit
from colmlm.kb.log.origin import current, mark, signed
from colmlm.kb.lookup import shared
from colmlm.kb.lookup.turns import is_turn_to_ask
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.store import Store
from colmlm.kb.tables import JobRow


class Jobs:
    """The jobs of a knowledge base. `kb.jobs.worker.Worker` runs them, in any process of the same home."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.uploads = Uploads.of(store.settings)

    @tried_again
    def submit(self, work: Work, *, actor: str) -> JobRecord:
        """Queues this work. Raises `UploadNotFound` where a file that it reads is missing."""
        audit.check_name("actor", actor)
        asked_in = current()
        for upload_id in work.uploads:
            self.uploads.file(upload_id)
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            job = JobRow(
                kind=work.kind,
                arguments=msgspec.to_builtins(work),
                actor=signed(actor).actor,
                principal=asked_in.principal.to_json(),
                request_id=asked_in.request_id,
                state="queued",
            )
            session.add(job)
            session.flush()
            quotations.redact_job(session, job)
            tickets.issue(session, job, work)
            mark(
                session, audit.head_seq(session)
            )  # so that a repeated request with one idempotency key queues it once
            session.flush()
            session.refresh(job)
            return record_of(job)

    def share_snapshots(self, changes: int = shared.FAR_AHEAD) -> JobRecord | None:
        """Queues a snapshot where the one that servers share is so many changes old, unless one is queued or made."""
        if self.store.settings.shared_snapshots is None:
            return None
        with self.store.sessions.begin() as session:
            unfinished = exists().where(JobRow.kind == WriteSnapshot.kind, JobRow.state.in_(UNFINISHED))
            if (
                not shared.is_old(session, changes)
                or not is_turn_to_ask(session)
                or session.scalar(select(unfinished))
            ):
                return None
            return self.submit(WriteSnapshot(), actor=self.store.settings.actor)

    def get(self, job_id: int) -> JobRecord:
        with self.store.sessions() as session:
            return record_of(_required(session, job_id))

    def list(
        self,
        *,
        kinds: Collection[str] | None = None,
        states: Collection[str] | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[JobRecord]:
        """Lists jobs, newest first: of these kinds, in these states, and older than job `before` (None: any)."""
        statement = select(JobRow).order_by(JobRow.id.desc()).limit(limit)
        if kinds is not None:
            statement = statement.where(JobRow.kind.in_(kinds))
        if states is not None:
            statement = statement.where(JobRow.state.in_(states))
        if before is not None:
            statement = statement.where(JobRow.id < before)
        with self.store.sessions() as session:
            return [record_of(job) for job in session.scalars(statement)]

    def counts(self) -> dict[str, int]:
        """Counts the jobs in each state."""
        with self.store.sessions() as session:
            found = session.execute(
                select(JobRow.state, func.count().label("number")).group_by(JobRow.state)
            ).all()
        counted = {row.state: row.number for row in found}
        return {state: counted.get(state, 0) for state in STATES}

    def counts_by_kind(self) -> dict[tuple[str, str], int]:
        """Counts the jobs of each kind and state."""
        number = func.count().label("number")
        with self.store.sessions() as session:
            found = session.execute(
                select(JobRow.kind, JobRow.state, number).group_by(JobRow.kind, JobRow.state)
            ).all()
        return {(row.kind, row.state): row.number for row in found}

    def num_workers(self) -> int:
        """Counts the workers with a recent heartbeat. Where there is none, jobs wait."""
        with self.store.sessions() as session:
            return tickets.num_workers(session)

    def num_waiting(self) -> int:
        """Counts the jobs that have waited for longer than an idle worker would have let them."""
        with self.store.sessions() as session:
            return attendance.num_waiting(session)

    def is_wanting(self, state: WorkerState | None) -> bool:
        """Tells whether a worker is lacking, so that jobs are not done; see `kb.jobs.attendance.is_wanting`."""
        with self.store.sessions() as session:
            return attendance.is_wanting(session, state)

    @tried_again
    def cancel(self, job_id: int, *, actor: str) -> JobRecord:
        """Ends a queued job at once, and asks a running one to end, which it does before its next piece of work.

        What a running job has committed stays. Raises `JobFinished`.
        """
        audit.check_name("actor", actor)
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            job = _required(session, job_id, lock=True)
            if job.state not in UNFINISHED:
                raise JobFinished(job_id, job.state)
            job.cancelled_by = job.cancelled_by or actor
            session.flush()
            if job.state == "queued":
                tickets.withdraw(session, job, only_waiting=True)
                tickets.finish(session, job, "cancelled")
            record = record_of(job)
        if record.is_over:
            self.uploads.discard(record.kind, record.arguments)
        return record


def _required(session: Session, job_id: int, *, lock: bool = False) -> JobRow:
    job = session.get(JobRow, job_id, with_for_update=lock) if 0 < job_id <= MAX_ID else None
    if job is None:
        raise JobNotFound(job_id)
    return job
