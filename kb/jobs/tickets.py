"""Tickets: procrastinate's jobs, each the permission to run one of ours once. Session first; nothing here commits.

Procrastinate hands tickets to workers, one at a time for each lock, and keeps no history: the state that people see is
in our own table. A job that is taken up again gets a new ticket, so that a worker which was taken for dead too early
can write nothing more: it still holds the old one.

A running worker holds an advisory lock on its ticket, on a connection of its own. PostgreSQL releases it as soon as
the worker's process is gone, so that nobody has to wait for a missed heartbeat, unless the whole machine was lost.
Whether any worker does the jobs is told by heartbeats and by the state of the worker that a server runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from procrastinate import App, SyncPsycopgConnector
from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidWork, KBError, refusals
from colmlm.kb.facts import suppression
from colmlm.kb.jobs.kinds import work_of
from colmlm.kb.jobs.records import JobRecord, Work
from colmlm.kb.principal import Principal
from colmlm.kb.removal import quotations
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.waits import refusal_of
from colmlm.kb.tables import JobRow, copy_columns

Problem = dict[str, Any]


def problem_of(error: Exception) -> Problem:
    """Give the problem document that a failed job stores. The cause of an unexpected error goes to the log only."""
    error = refusal_of(error) or error
    if isinstance(error, KBError):
        kind = f"urn:colmlm:{error.code}"
        return {"type": kind, "title": error.title, "detail": str(error)}
    return {
        "type": "urn:colmlm:InternalError",
        "title": "Internal error",
        "detail": "The job failed in a way this program does not know. The cause is in the worker's log.",
    }


QUEUE = "colmlm"
TASK = "colmlm.job"
MAX_ATTEMPTS = 5
STALLED_SECONDS = 30.0

_TAKEN_UP_AGAIN = 1  # the priority of tickets of jobs that are taken up again: before those that never ran

_defer = App(connector=SyncPsycopgConnector())  # only queues, on the connection that it is given

_STALLED = text("""
SELECT job.id FROM job
LEFT JOIN procrastinate_jobs AS ticket ON ticket.id = job.ticket
LEFT JOIN procrastinate_workers AS worker ON worker.id = ticket.worker_id
WHERE CASE job.state
    WHEN 'running' THEN job.heartbeat_at < clock_timestamp() - CAST(:stalled AS interval)
        OR pg_try_advisory_xact_lock(hashtextextended('ticket of colmlm ' || job.ticket, 0))
    WHEN 'queued' THEN ticket.id IS NULL
        OR ticket.status = 'doing'
            AND (worker.id IS NULL OR worker.last_heartbeat < clock_timestamp() - CAST(:stalled AS interval))
    ELSE false END
ORDER BY job.id
FOR UPDATE OF job SKIP LOCKED
""")
_DROP_ORPHANS = text("""
DELETE FROM procrastinate_jobs AS ticket
WHERE queue_name = :queue AND status = 'doing'
AND NOT EXISTS (SELECT 1 FROM procrastinate_workers AS worker
    WHERE worker.id = ticket.worker_id
    AND worker.last_heartbeat >= clock_timestamp() - CAST(:stalled AS interval))
AND NOT EXISTS (SELECT 1 FROM job WHERE job.ticket = ticket.id AND job.state IN ('queued', 'running'))
""")


def issue_ticket(session: Session, job: JobRow, work: Work, *, again: bool = False) -> None:
    """Make the ticket by which a worker runs this queued job; with `again` ahead of the jobs that never ran."""
    job.ticket = _defer.configure_task(
        TASK,
        queue=QUEUE,
        lock=work.lock,
        priority=_TAKEN_UP_AGAIN if again else 0,
        connection=connection_of(session),
    ).defer(job_id=job.id)


def withdraw_ticket(session: Session, job: JobRow, *, only_waiting: bool = False) -> None:
    """Delete the job's ticket; with `only_waiting` not where a worker has taken it."""
    statement = "DELETE FROM procrastinate_jobs WHERE id = :id"
    statement += " AND status = 'todo'" if only_waiting else ""
    session.execute(text(statement), {"id": job.ticket})


def num_workers(session: Session) -> int:
    """Count the workers with a recent heartbeat."""
    heard = "SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat >= now() - CAST(:stalled AS interval)"
    return session.scalar(text(heard), {"stalled": timedelta(seconds=STALLED_SECONDS)}) or 0


def rescue_tickets(session: Session, stalled_seconds: float = STALLED_SECONDS) -> list[JobRow]:
    """Queue the jobs of dead workers again, end those cancelled or with too many attempts, and give all of them."""
    suppression.hold_off_erasure(session)
    stalled = timedelta(seconds=stalled_seconds)
    session.execute(_DROP_ORPHANS, {"queue": QUEUE, "stalled": stalled})
    found = [
        session.get_one(JobRow, job_id) for job_id in session.scalars(_STALLED, {"stalled": stalled}).all()
    ]
    for job in found:
        withdraw_ticket(session, job)
        if job.cancelled_by is not None:
            finish_ticket(session, job, "cancelled")
        elif job.state == "running" and job.attempts >= MAX_ATTEMPTS:
            finish_ticket(
                session, job, "failed", error=problem_of(refusals.job_given_up(job.id, job.attempts))
            )
        else:
            _requeue_or_fail(session, job)
    return found


def _requeue_or_fail(session: Session, job: JobRow) -> None:
    try:
        requeue_ticket(session, job)
    except InvalidWork as error:  # another release queued it, and it must not keep the others waiting
        finish_ticket(session, job, "failed", error=problem_of(error))


def requeue_ticket(session: Session, job: JobRow) -> None:
    """Put a job back into the queue, before those that never ran."""
    job.state = "queued"
    issue_ticket(session, job, work_of(job.kind, job.arguments), again=True)


def finish_ticket(session: Session, job: JobRow, state: str, *, error: Problem | None = None) -> None:
    """Set the final `state` of a job that no worker runs, and redact its row. Call `hold_off_erasure` first."""
    session.execute(
        update(JobRow)
        .where(JobRow.id == job.id)
        .values(state=state, error=error, finished_at=func.clock_timestamp())
    )
    session.refresh(job)
    quotations.redact_job(session, job)


STEADY_SECONDS = 60.0  # a worker that has run so long did not fail at its start, and should have a heartbeat
WAITED = timedelta(seconds=30)  # how long a job may wait before the lack of a worker is reported

_FILE = "worker.json"


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """The worker process that a server runs as its child, as that server sees it.

    `failures` counts how often in a row it ended without being told to; it is 0 again once it has run for a minute.
    `exit_code` and `last_error` are of the last such end; the latter has its last lines on stderr, without secrets.
    """

    running: bool
    since: datetime
    failures: int = 0
    restarts: int = 0
    exit_code: int | None = None
    last_error: tuple[str, ...] = ()

    @property
    def is_steady(self) -> bool:
        """Whether it has run for so long that it should have a heartbeat."""
        return self.running and datetime.now(UTC) - self.since > timedelta(seconds=STEADY_SECONDS)


OwnWorker = Callable[
    [], WorkerState | None
]  # gives the state of the worker that this server runs; None where it runs none


def report_no_worker() -> None:
    """Give None, the state of the worker of a server that runs none."""


def lacks_worker(session: Session, state: WorkerState | None) -> bool:
    """Tell whether a worker is lacking, so that jobs are not done or soon would not be.

    One is lacking where the server's own worker (`state`; None: it runs none) fails or has no heartbeat, or where jobs
    wait and no worker has a heartbeat.
    """
    if state is not None and (state.failures or not state.running):
        return True
    if num_workers(session):
        return False
    return state.is_steady if state is not None else num_waiting(session) > 0


def num_waiting(session: Session) -> int:
    """Count the queued jobs that have waited so long that no worker seems to take them."""
    late = func.clock_timestamp() - WAITED
    statement = select(func.count()).where(JobRow.state == "queued", JobRow.created_at < late)
    return session.scalar(statement) or 0


def note_attendance(home: Path, state: WorkerState) -> None:
    """Write the state of a failing worker to a file of the home, for other processes."""
    home.mkdir(parents=True, exist_ok=True)
    scratch = home / f"{_FILE}.new"
    scratch.touch(mode=0o600)
    scratch.write_bytes(msgspec.json.encode(state))
    scratch.replace(home / _FILE)


def clear_attendance(home: Path) -> None:
    """Remove the file of `note_attendance`, once the worker runs again or was told to end."""
    (home / _FILE).unlink(missing_ok=True)


def noted_attendance(home: Path) -> WorkerState | None:
    """Read the state of a failing worker that a server noted last; None where nothing is noted."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((home / _FILE).read_bytes(), type=WorkerState)
    return None


def job_record(job: JobRow) -> JobRecord:
    """Make the record of a job's row."""
    return copy_columns(
        JobRecord,
        job,
        job_id=job.id,
        created_at=job.created_at.astimezone(UTC),
        started_at=_utc(job.started_at),
        finished_at=_utc(job.finished_at),
        heartbeat_at=_utc(job.heartbeat_at),
        principal=None if job.principal is None else Principal.from_json(job.principal),
    )


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)
