"""Logs outages of the database: one line a minute, however many requests and threads notice it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

TOLD_SECONDS = 60.0

# The errors of a statement where the database does not answer: SQLAlchemy's, and the driver's where it is used
# directly.
GONE = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)

_AWAY = "away"


@dataclass(slots=True)
class Teller:
    """Logs outages. `told` has for each kind the time of its last line, and the number of outages noticed since."""

    clock: Callable[[], float] = time.monotonic
    told: dict[str, tuple[float, int]] = field(default_factory=dict)
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, log: logging.Logger, said: str, error: BaseException) -> None:
        """Logs what could not be done and why, unless an outage of that kind was already logged within this minute."""
        if (silent := self._due(_kind(error))) is not None:
            more = f"; {silent} more like this since it was last said" if silent else ""
            log.warning("%s: %s%s", said, cause(error), more)

    def is_news(self, record: logging.LogRecord) -> bool:
        """Filters log records: says whether to log one, and takes the traceback out of those about an outage."""
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, GONE):
            error = error.__cause__
        if error is None:
            return True
        record.exc_info, record.msg, record.args = None, f"{record.getMessage()}: {cause(error)}", ()
        return self._due(_kind(error)) is not None

    def _due(self, kind: str) -> int | None:
        """Gives how many lines of this kind were left out since its last, where another is due; else None."""
        now = self.clock()
        with self._telling:
            told_at, silent = self.told.get(kind, (now - TOLD_SECONDS, 0))
            is_due = now - told_at >= TOLD_SECONDS
            self.told[kind] = (now, 0) if is_due else (told_at, silent + 1)
            return silent if is_due else None


TELLER = Teller()  # one in each process, since many threads notice the same outage
tell, is_news = TELLER.tell, TELLER.is_news


def pause(attempts: int, longest: float) -> float:
    """Gives the seconds to wait after this many failed attempts: twice as many after each, and at most `longest`."""
    return min(0.1 * 2.0 ** min(attempts, 16), longest)


def cause(error: BaseException) -> str:
    """Gives the driver's message in one line, without the statement and its parameters."""
    found = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(found).split()) or type(found).__name__


def _kind(error: BaseException) -> str:
    """Gives the kind of an outage: one for all connections that break or are refused, else the server's own code.

    What is no outage of the database, such as a full disk, is a kind of its own and hides none of one.
    """
    found = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(found, OSError) and not isinstance(found, ConnectionError | TimeoutError):
        return f"{type(found).__name__} {found.errno}"
    state = getattr(found, "sqlstate", None) or ""
    return _AWAY if not state or state.startswith(("08", "57P")) else state
