"""Records of jobs as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from colmlm.kb.principal import Principal
from colmlm.kb.progress import Reporting

if TYPE_CHECKING:
    from colmlm.kb.tables import JobRow

POLL_SECONDS = 0.5
UNFINISHED = ("queued", "running")
STATES = (*UNFINISHED, "succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. `state` is queued, running, succeeded, failed or cancelled; `error` a problem document where it failed.

    `done` of `total` (None: unknown) say how far it is, in the unit that `message` names. `attempts` counts its starts
    without those that a worker handed back. `cancelled_by` asked for its end. `principal` was authenticated when the
    job was queued; None in jobs that an older release queued.
    """

    job_id: int
    kind: str
    arguments: dict[str, Any]
    actor: str
    request_id: str | None
    state: str
    done: int
    total: int | None
    message: str | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempts: int
    cancelled_by: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    principal: Principal | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in UNFINISHED


def record_of(job: JobRow) -> JobRecord:
    """Give the record of a job's row."""
    return JobRecord(
        job_id=job.id,
        kind=job.kind,
        arguments=job.arguments,
        actor=job.actor,
        request_id=job.request_id,
        state=job.state,
        done=job.done,
        total=job.total,
        message=job.message,
        result=job.result,
        error=job.error,
        attempts=job.attempts,
        cancelled_by=job.cancelled_by,
        created_at=job.created_at.astimezone(UTC),
        started_at=_utc(job.started_at),
        finished_at=_utc(job.finished_at),
        heartbeat_at=_utc(job.heartbeat_at),
        principal=None if job.principal is None else Principal.from_json(job.principal),
    )


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)


def wait_for_job(
    read: Callable[[int], JobRecord], job_id: int, timeout: float | None, progress: Reporting
) -> JobRecord:
    """Wait until the job has ended, or for `timeout` seconds (None: without limit), and give its record."""
    deadline = None if timeout is None else time.monotonic() + timeout
    job = read(job_id)
    with progress(f"Job {job_id} ({job.kind})") as advance:
        while not job.is_over and (deadline is None or time.monotonic() < deadline):
            advance(job.done, job.total)
            time.sleep(POLL_SECONDS)
            job = read(job_id)
    return job
