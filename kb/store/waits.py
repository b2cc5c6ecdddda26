"""Limits how long statements wait for locks and how long they run, and finds who holds the log's lock meanwhile.

A server's requests are limited, and reports on this machine. An ingest, a migration, a maintenance command and the
building of an index are not, since they need their time.
"""

from __future__ import annotations

import errno
import math
import re
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg import errors
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from colmlm.kb.errors import KBError, LockHeld, refusals
from colmlm.kb.store.engines import SPARE_SECONDS, PatientConnection
from colmlm.kb.store.settings import Settings

# pg_locks has an advisory lock of 64 bits as two halves. The holder's statement is not read, since it may hold a text.
_HOLDER = text("""
SELECT a.application_name, a.pid, extract(epoch FROM clock_timestamp() - a.xact_start) AS seconds
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.classid::bigint = :key >> 32 AND l.objid::bigint = :key & 4294967295
LIMIT 1
""")


@dataclass(frozen=True, slots=True)
class Waits:
    """The longest that a statement may wait for a lock and run, in seconds; 0 is without limit."""

    lock: float
    statement: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Give the limits that the settings set for a request."""
        return cls(settings.lock_timeout_seconds, settings.statement_timeout_seconds)

    @property
    def patience(self) -> float:
        """How long to wait for an answer: longer than the server takes to end a statement, where it does."""
        return self.statement + SPARE_SECONDS if self.statement else math.inf

    def options(self) -> str:
        """Give the limits for a connection's `options`, in milliseconds as PostgreSQL counts."""
        return f"-c lock_timeout={1000 * self.lock:.0f} -c statement_timeout={1000 * self.statement:.0f}"


# The limits for admitting a request and for a probe, which read one row while the caller waits.
AT_THE_DOOR = Waits(lock=1.0, statement=3.0)


def holder_of(engine: Engine, key: int) -> str | None:
    """Name who holds the advisory lock `key`, by application, process and duration; None where nobody holds it now."""
    with engine.connect() as connection:
        found = connection.execute(_HOLDER, {"key": key}).one_or_none()
    if found is None:
        return None
    since = "" if found.seconds is None else f", for {found.seconds:.0f} s"
    return (
        f"{found.application_name or 'a program without a name'} (process {found.pid} of the database{since})"
    )


def bounded(session: Session, seconds: float) -> None:
    """Limit each statement of this transaction, a report, where the connection has no limit of its own.

    A report that nobody waits for any more would keep the server from clearing up what was deleted since it began.
    """
    if (
        session.scalar(text("SHOW statement_timeout")) == "0"
    ):  # no query, so that the isolation may still be set
        session.execute(text(f"SET LOCAL statement_timeout = {1000 * seconds:.0f}"))


def unhurried(session: Session) -> None:
    """Lift the time limit for the statements of this transaction, as breaking them off would only repeat them."""
    session.execute(text("SET LOCAL statement_timeout = 0"))
    driver = session.connection().connection.driver_connection
    if isinstance(driver, PatientConnection):
        driver.patience = math.inf  # until the pool has it back


# Translates failures of the database or the disk into errors of the tree, which say cause and remedy.

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_RUST = re.compile(r"\(os error ([0-9]+)\)")


def refusal_of(error: BaseException) -> KBError | None:
    """Give the error of the tree for a failure of the driver or the system; None where there is none."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    match cause:
        case errors.LockNotAvailable():
            return LockHeld(_where(cause))
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return refusals.collided()
        case errors.QueryCanceled():
            return refusals.statement_too_long()
        case errors.DiskFull():
            return refusals.storage_full("the database")
        case errors.ReadOnlySqlTransaction():
            return refusals.storage_read_only("The database")
    return _of_the_disk(cause or error)


def _of_the_disk(error: BaseException) -> KBError | None:
    file = getattr(error, "filename", None)
    number = error.errno if isinstance(error, OSError) else _told_in_words(error)
    if number in _FULL:
        return refusals.storage_full(str(file or "what was to be written"))
    if number == errno.EROFS:
        return refusals.storage_read_only(str(file or "The disk"))
    return None


def _told_in_words(error: BaseException) -> int | None:
    """What the system said, as libraries written in Rust put it: those that write weights and tokenizers."""
    told = _OF_RUST.search(str(error))
    return int(told[1]) if told else None


def _where(error: psycopg.Error) -> str:
    """Give the lock that was waited for, in the server's words: `while locking tuple (0,1) in relation "api_key"`."""
    return (error.diag.context or "for another transaction").splitlines()[0]
