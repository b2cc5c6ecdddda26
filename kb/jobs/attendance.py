"""Attendance: whether anybody does the jobs, by heartbeats and by what a server says of the worker it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.jobs import tickets
from colmlm.kb.tables import Job

STEADY_SECONDS = 60.0  # a worker that lived so long did not fail at its start, and was heard of
WAITED = timedelta(seconds=30)  # how long a job may wait before the want of a worker is told

_FILE = "worker.json"


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that a server runs beside it, as that server sees it.

    `failures` counts its ends in a row, none of which was asked for; it is 0 again when it has gone on for a minute.
    `exit_code` and `last_error` are of the last such end, with what it said last on stderr, without secrets.
    """

    running: bool
    since: datetime
    failures: int = 0
    restarts: int = 0
    exit_code: int | None = None
    last_error: tuple[str, ...] = ()

    @property
    def is_steady(self) -> bool:
        """Whether it has gone on for so long that it should have been heard of."""
        return self.running and datetime.now(UTC) - self.since > timedelta(seconds=STEADY_SECONDS)


OwnWorker = Callable[
    [], WorkerState | None
]  # how the worker that this server runs is; None where it runs none


def no_worker() -> None:
    """Of a server that runs no worker."""


def is_wanting(session: Session, state: WorkerState | None) -> bool:
    """Whether jobs are not done, or soon would not be.

    So it is where the worker that a server runs (`state`; None where it runs none) fails or is never heard of, and
    where jobs wait and no worker at all is heard of.
    """
    if state is not None and (state.failures or not state.running):
        return True
    if tickets.num_workers(session):
        return False
    return state.is_steady if state is not None else num_waiting(session) > 0


def num_waiting(session: Session) -> int:
    """How many jobs have waited for longer than a worker that lives lets them, unless it is busy."""
    late = func.clock_timestamp() - WAITED
    statement = select(func.count()).where(Job.state == "queued", Job.created_at < late)
    return session.scalar(statement) or 0


def note(home: Path, state: WorkerState) -> None:
    """Leave the state of a worker that fails where other processes of the home find it."""
    home.mkdir(parents=True, exist_ok=True)
    scratch = home / f"{_FILE}.new"
    scratch.touch(mode=0o600)
    scratch.write_bytes(msgspec.json.encode(state))
    scratch.replace(home / _FILE)


def clear(home: Path) -> None:
    """Take back what was noted: the worker goes on, or was ended."""
    (home / _FILE).unlink(missing_ok=True)


def noted(home: Path) -> WorkerState | None:
    """What a server noted last of a worker that fails; None where nothing is noted."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((home / _FILE).read_bytes(), type=WorkerState)
    return None
