"""Limits how long statements wait and run, repeats transactions after contention, and logs why work failed.

A server's requests are limited, and reports on this machine. An ingest, a migration, a maintenance command and the
building of an index are not, since they need their time. Of several processes, one at a time builds the index of a
keyset, or stores it elsewhere.

Locks are taken in one order (docs/explanation/architecture.md, "Edits"), so no verbs of one program version should wait
for each other in a circle. It may happen with another version, with an operator's statements, or with locks of
PostgreSQL's own.

An outage is logged once a minute, however many requests and threads notice it. All errors of an outage of the database
are of one kind. An error that the program does not know is its own fault: it is logged with its traceback, and hides no
outage and no fault of other work.
"""

from __future__ import annotations

import errno
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from colmlm.kb.errors import DatabaseUnavailable, KBError, LockHeld, refusals
from colmlm.kb.store.engines import SPARE_SECONDS, TimedConnection
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
    def silence_limit(self) -> float:
        """The seconds to wait for an answer: some more than the limit of a statement, infinite without that limit."""
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


def limit_statements(session: Session, seconds: float) -> None:
    """Limit each statement of this reporting transaction, if its connection has no limit of its own.

    A report that nobody waits for would keep the server from vacuuming deleted rows.
    """
    # SHOW is no query, so that the isolation may still be set.
    if session.scalar(text("SHOW statement_timeout")) == "0":
        session.execute(text(f"SET LOCAL statement_timeout = {1000 * seconds:.0f}"))


def lift_statement_limit(session: Session) -> None:
    """Lift the time limit for this transaction's statements, which would only be repeated if cut off."""
    session.execute(text("SET LOCAL statement_timeout = 0"))
    driver = session.connection().connection.driver_connection
    if isinstance(driver, TimedConnection):
        driver.silence_limit = math.inf  # until the pool has it back


# Translates failures of the database or the disk into errors of the tree, which say cause and remedy.

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_RUST = re.compile(r"\(os error ([0-9]+)\)")


def refusal_of(error: BaseException) -> KBError | None:
    """Translate an error of the driver or the operating system to a `KBError`; None where none stands for it."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    match cause:
        case errors.LockNotAvailable():
            return LockHeld(_awaited_lock(cause))
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return refusals.collided()
        case errors.QueryCanceled():
            return refusals.statement_too_long()
        case errors.DiskFull():
            return refusals.storage_full("the database")
        case errors.ReadOnlySqlTransaction():
            return refusals.storage_read_only("the database")
    return _refusal_by_errno(cause or error)


def _refusal_by_errno(error: BaseException) -> KBError | None:
    file = getattr(error, "filename", None)
    number = error.errno if isinstance(error, OSError) else _errno_in_message(error)
    if number in _FULL:
        return refusals.storage_full(str(file or "this file"))
    if number == errno.EROFS:
        return refusals.storage_read_only(str(file or "the disk"))
    return None


def _errno_in_message(error: BaseException) -> int | None:
    """Read the errno in the message of a library written in Rust; None where the message has none."""
    told = _OF_RUST.search(str(error))
    return int(told[1]) if told else None


def _awaited_lock(error: psycopg.Error) -> str:
    """Give the lock that was waited for, in the server's words: `while locking tuple (0,1) in relation "api_key"`."""
    return (error.diag.context or "for another transaction").splitlines()[0]


ATTEMPTS = 4
PAUSE_SECONDS = 0.05

P = ParamSpec("P")
T = TypeVar("T")


def retry_on_contention(transaction: Callable[P, T]) -> Callable[P, T]:
    """Make a function of one transaction run again after a deadlock or serialisation failure, `ATTEMPTS` times in all.

    The last failure is raised unchanged, and `refusal_of` translates it.
    """

    @wraps(transaction)
    def trying(*arguments: P.args, **options: P.kwargs) -> T:
        for attempt in range(1, ATTEMPTS):
            try:
                return transaction(*arguments, **options)
            except (DBAPIError, psycopg.Error) as error:
                if not is_contention(error):
                    raise
            time.sleep(random.uniform(0, PAUSE_SECONDS * 2**attempt))  # random, so as not to collide again
        return transaction(*arguments, **options)

    return trying


def is_contention(error: BaseException) -> bool:
    """Say whether the transaction failed only because of another one: by deadlock or serialisation."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, DeadlockDetected | SerializationFailure)


TOLD_SECONDS = 60.0

# The errors of a statement where the database does not answer: SQLAlchemy's, and the driver's if used directly.
GONE = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)

_AWAY = "away"
# The last two may hold texts that were stored.
_EXPLAINED = (KBError, OSError, SQLAlchemyError, psycopg.Error)


@dataclass(slots=True)
class OutageLog:
    """Logs outages, each kind once a minute. `told` has, by kind, the last line's time and how many were dropped."""

    clock: Callable[[], float] = time.monotonic
    told: dict[str, tuple[float, int]] = field(default_factory=dict)
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def log_outage(self, log: logging.Logger, said: str, error: BaseException) -> None:
        """Log `said`, the work that failed, and why, unless that kind of outage was logged within this minute."""
        if (silent := self._lines_left_out(_kind(error, said))) is not None:
            more = f"; {silent} more like this since it was last said" if silent else ""
            log.warning("%s: %s%s", said, cause_of(error), more, exc_info=fault_of_server(error))

    def is_news(self, record: logging.LogRecord) -> bool:
        """Say whether to log a record. One about an outage loses its traceback, and is logged once a minute."""
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, GONE):
            error = error.__cause__
        if error is None:
            return True
        record.exc_info, record.msg, record.args = None, f"{record.getMessage()}: {cause_of(error)}", ()
        return self._lines_left_out(_kind(error, record.name)) is not None

    def _lines_left_out(self, kind: str) -> int | None:
        """Give how many lines of this kind were left out since its last one; None where the next is not due yet."""
        now = self.clock()
        with self._telling:
            told_at, silent = self.told.get(kind, (now - TOLD_SECONDS, 0))
            is_due = now - told_at >= TOLD_SECONDS
            self.told[kind] = (now, 0) if is_due else (told_at, silent + 1)
            return silent if is_due else None


TELLER = OutageLog()  # one in each process, since many threads notice the same outage
log_outage, is_news = TELLER.log_outage, TELLER.is_news


def pause_after(attempts: int, longest: float) -> float:
    """Give the seconds to wait after this many failed attempts: twice as many after each, and at most `longest`."""
    return min(0.1 * 2.0 ** min(attempts, 16), longest)


def cause_of(error: BaseException) -> str:
    """Give the message of an error in one line; of a database error, without the statement and its parameters."""
    found = _driver_error(error)
    return " ".join(str(found).split()) or type(found).__name__


def is_outage(error: BaseException | None) -> bool:
    """Say whether this error, or a cause of it, means that no database answers: a connection broke or was refused.

    An error by which a server refuses a statement, such as for a full disk, is no outage.
    """
    while error is not None and not isinstance(error, (*GONE, DatabaseUnavailable)):
        error = error.__cause__
    state = _sqlstate_of(error)
    return error is not None and (not state or state.startswith(("08", "57P")))


def fault_of_server(error: BaseException) -> BaseException | None:
    """Give the error back, to log its traceback, if it is a fault of the program; None for outages and known errors."""
    return None if is_outage(error) or isinstance(error, _EXPLAINED) else error


def _kind(error: BaseException, said: str) -> str:
    """Give the kind under which an error is logged: one for all outages, else one for each work, class and code."""
    if is_outage(error):
        return _AWAY
    found = _driver_error(error)
    code = _sqlstate_of(error) or getattr(found, "errno", None) or ""
    return f"{said}: {type(found).__name__} {code}"


def _sqlstate_of(error: BaseException | None) -> str:
    return getattr(_driver_error(error), "sqlstate", None) or ""


def _driver_error(error: BaseException | None) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) else error


# Training and filling may take longer.
_WITHOUT_TIMEOUT = text("SET LOCAL idle_in_transaction_session_timeout = 0")
_KEY = "hashtextextended('index of keyset ' || :keyset_id, 0)"
_TRY = text(f"SELECT pg_try_advisory_xact_lock({_KEY})")
_WAIT = text(f"SELECT pg_advisory_xact_lock({_KEY})")

_TRY_TO_ASK = text("SELECT pg_try_advisory_xact_lock(hashtextextended('asking for a shared snapshot', 0))")


def is_turn_to_ask(session: Session) -> bool:
    """Try to take the lock on queueing a shared snapshot; say whether this transaction now has it, until it ends."""
    return bool(session.scalar(_TRY_TO_ASK))


def has_turn(session: Session, keyset_id: int) -> bool:
    """Try to take the lock on writing a keyset's index; say whether this transaction now has it, until it ends."""
    session.execute(_WITHOUT_TIMEOUT)
    return bool(session.scalar(_TRY, {"keyset_id": keyset_id}))


def wait_for_turn(session: Session, keyset_id: int) -> None:
    """Wait for the lock on writing a keyset's index, and keep it to the transaction's end. Raises `LockHeld`."""
    session.execute(_WITHOUT_TIMEOUT)
    try:
        session.execute(_WAIT, {"keyset_id": keyset_id})
    except OperationalError as error:
        if not isinstance(error.orig, LockNotAvailable):
            raise
        raise LockHeld(f"the index of keyset {keyset_id} is being written") from error
