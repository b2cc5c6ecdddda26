"""Logs why work that is tried again did not go: one line a minute, however many requests and threads notice it.

All of an outage of the database is of one kind. What this program does not know is a fault of it: it is told with its
traceback, and hides no outage and no fault of other work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from colmlm.kb.errors import DatabaseUnavailable, KBError

TOLD_SECONDS = 60.0

# The errors of a statement where the database does not answer: SQLAlchemy's, and the driver's where it is used
# directly.
GONE = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)

_AWAY = "away"
_EXPLAINED = (
    KBError,
    OSError,
    SQLAlchemyError,
    psycopg.Error,
)  # the last two may hold texts that were stored


@dataclass(slots=True)
class Teller:
    """Logs outages. `told` has for each kind the time of its last line, and the number of outages noticed since."""

    clock: Callable[[], float] = time.monotonic
    told: dict[str, tuple[float, int]] = field(default_factory=dict)
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, log: logging.Logger, said: str, error: BaseException) -> None:
        """Log what could not be done and why, unless something of that kind was already logged within this minute."""
        if (silent := self._due(_kind(error, said))) is not None:
            more = f"; {silent} more like this since it was last said" if silent else ""
            log.warning("%s: %s%s", said, cause_of(error), more, exc_info=fault_of_server(error))

    def is_news(self, record: logging.LogRecord) -> bool:
        """Filter log records: says whether to log one, and take the traceback out of those about an outage."""
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, GONE):
            error = error.__cause__
        if error is None:
            return True
        record.exc_info, record.msg, record.args = None, f"{record.getMessage()}: {cause_of(error)}", ()
        return self._due(_kind(error, record.name)) is not None

    def _due(self, kind: str) -> int | None:
        """Give how many lines of this kind were left out since its last, where another is due; else None."""
        now = self.clock()
        with self._telling:
            told_at, silent = self.told.get(kind, (now - TOLD_SECONDS, 0))
            is_due = now - told_at >= TOLD_SECONDS
            self.told[kind] = (now, 0) if is_due else (told_at, silent + 1)
            return silent if is_due else None


TELLER = Teller()  # one in each process, since many threads notice the same outage
tell, is_news = TELLER.tell, TELLER.is_news


def pause_after(attempts: int, longest: float) -> float:
    """Give the seconds to wait after this many failed attempts: twice as many after each, and at most `longest`."""
    return min(0.1 * 2.0 ** min(attempts, 16), longest)


def cause_of(error: BaseException) -> str:
    """Give the driver's message in one line, without the statement and its parameters."""
    found = _driver_error(error)
    return " ".join(str(found).split()) or type(found).__name__


def is_outage(error: BaseException | None) -> bool:
    """Say whether the database does not answer: a connection broke or was refused, perhaps as another error's cause.

    What the server itself refuses, such as writing to a full disk, is none.
    """
    while error is not None and not isinstance(error, (*GONE, DatabaseUnavailable)):
        error = error.__cause__
    state = _state(error)
    return error is not None and (not state or state.startswith(("08", "57P")))


def fault_of_server(error: BaseException) -> BaseException | None:
    """Give an error that this program does not know, which is to be logged with its traceback; None for any other."""
    return None if is_outage(error) or isinstance(error, _EXPLAINED) else error


def _kind(error: BaseException, said: str) -> str:
    """Give one kind for all of an outage, else one for each work and error: its class, and the code that it has."""
    if is_outage(error):
        return _AWAY
    found = _driver_error(error)
    code = _state(error) or getattr(found, "errno", None) or ""
    return f"{said}: {type(found).__name__} {code}"


def _state(error: BaseException | None) -> str:
    return getattr(_driver_error(error), "sqlstate", None) or ""


def _driver_error(error: BaseException | None) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) else error
