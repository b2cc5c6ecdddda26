"""Tells the log of a database that does not answer: a line a minute, however many requests and threads notice it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

TOLD_SECONDS = 60.0

# What a statement raises where the database is away, of SQLAlchemy and of the driver where it is used by itself.
GONE = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)

_AWAY = "away"


@dataclass(slots=True)
class Teller:
    """Says what there is to say of outages. `told` has of each kind when its last line was, and how many since."""

    clock: Callable[[], float] = time.monotonic
    told: dict[str, tuple[float, int]] = field(default_factory=dict)
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, log: logging.Logger, said: str, error: BaseException) -> None:
        """Log what was not done and why, unless this minute had a line of an outage of that kind already."""
        if (silent := self._due(_kind(error))) is not None:
            more = f"; {silent} more like this since it was last said" if silent else ""
            log.warning("%s: %s%s", said, cause(error), more)

    def is_news(self, record: logging.LogRecord) -> bool:
        """Whether a record should be logged: a filter for what libraries say of an outage, which needs no traceback."""
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, GONE):
            error = error.__cause__
        if error is None:
            return True
        record.exc_info, record.msg, record.args = None, f"{record.getMessage()}: {cause(error)}", ()
        return self._due(_kind(error)) is not None

    def _due(self, kind: str) -> int | None:
        """How many lines of this kind were left out since its last, where it is time for another; else None."""
        now = self.clock()
        with self._telling:
            told_at, silent = self.told.get(kind, (now - TOLD_SECONDS, 0))
            is_due = now - told_at >= TOLD_SECONDS
            self.told[kind] = (now, 0) if is_due else (told_at, silent + 1)
            return silent if is_due else None


TELLER = Teller()  # one a process: many threads notice the same outage
tell, is_news = TELLER.tell, TELLER.is_news


def pause(attempts: int, longest: float) -> float:
    """Seconds to wait after so many attempts in vain, twice as long after each; never so many that none could count."""
    return min(0.1 * 2.0 ** min(attempts, 16), longest)


def cause(error: BaseException) -> str:
    """The driver's message in one line, without the statement and its parameters."""
    found = error.orig if isinstance(error, DBAPIError) else error
    return " ".join(str(found).split()) or type(found).__name__


def _kind(error: BaseException) -> str:
    """Connections that break or are refused are one kind; else what the server said (a full disk is another)."""
    found = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(found, "sqlstate", None) or ""
    return _AWAY if not state or state.startswith(("08", "57P")) else state
