"""How long statements wait for locks and how long they run, and who holds the log's lock meanwhile.

What a server asks for its requests is limited; what an ingest, a migration, a maintenance command or an index that is
built asks is not, since it takes as long as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from colmlm.kb.store.settings import Settings

# An advisory lock of 64 bits stands there as two halves. What the holder says is not told: it may hold a text.
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
    """Seconds; 0 is without end."""

    lock: float
    statement: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What the settings allow a request."""
        return cls(settings.lock_timeout_seconds, settings.statement_timeout_seconds)

    def options(self) -> str:
        """For a connection's `options`; PostgreSQL counts in milliseconds."""
        return f"-c lock_timeout={1000 * self.lock:.0f} -c statement_timeout={1000 * self.statement:.0f}"


# What a request's admission and a probe may cost: a key is one row, and whoever asks for it waits for the answer.
AT_THE_DOOR = Waits(lock=1.0, statement=3.0)


def holder_of(engine: Engine, key: int) -> str | None:
    """Who holds the advisory lock `key`, in words: application, process, since when; None where nobody does now."""
    with engine.connect() as connection:
        found = connection.execute(_HOLDER, {"key": key}).one_or_none()
    if found is None:
        return None
    since = "" if found.seconds is None else f", for {found.seconds:.0f} s"
    return (
        f"{found.application_name or 'a program without a name'} (process {found.pid} of the database{since})"
    )


def unhurried(session: Session) -> None:
    """Let the statements of this transaction run as long as they take: breaking them off would only repeat them."""
    session.execute(text("SET LOCAL statement_timeout = 0"))
