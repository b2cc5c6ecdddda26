"""Attendance: tells whether any worker does the jobs, by heartbeats and by the state of the worker a server runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.jobs import tickets
from colmlm.kb.tables import JobRow

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


def no_worker() -> None:
    """Stands for the state of the worker (`OwnWorker`) of a server that runs none."""


def is_wanting(session: Session, state: WorkerState | None) -> bool:
    """Tell whether a worker is lacking, so that jobs are not done or soon would not be.

    One is lacking where the worker that a server runs (`state`; None where it runs none) fails or has no heartbeat, and
    where jobs wait and no worker at all has a heartbeat.
    """
    if state is not None and (state.failures or not state.running):
        return True
    if tickets.num_workers(session):
        return False
    return state.is_steady if state is not None else num_waiting(session) > 0


def num_waiting(session: Session) -> int:
    """Count the jobs that have waited for longer than an idle worker would have let them."""
    late = func.clock_timestamp() - WAITED
    statement = select(func.count()).where(JobRow.state == "queued", JobRow.created_at < late)
    return session.scalar(statement) or 0


def note_attendance(home: Path, state: WorkerState) -> None:
    """Write the state of a failing worker to a file of the home, for other processes to read."""
    home.mkdir(parents=True, exist_ok=True)
    scratch = home / f"{_FILE}.new"
    scratch.touch(mode=0o600)
    scratch.write_bytes(msgspec.json.encode(state))
    scratch.replace(home / _FILE)


def clear_attendance(home: Path) -> None:
    """Remove the noted state, once the worker runs again or was told to end."""
    (home / _FILE).unlink(missing_ok=True)


def noted_attendance(home: Path) -> WorkerState | None:
    """Read the state of a failing worker that a server noted last; None where nothing is noted."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((home / _FILE).read_bytes(), type=WorkerState)
    return None
