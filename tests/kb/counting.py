"""Which statements count keys, and which of them do so while their transaction keeps all edits waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, event, text

from colmlm.kb.log.audit import CHANGE_LOCK

_HOLDS_LOG = text("""
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = :pid
  AND (classid::bigint << 32) + objid::bigint = :key
""")


@dataclass(slots=True)
class Counts:
    """The statements that counted keys, and those of them that did so while their transaction had the log's lock."""

    engine: Engine
    heard: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)

    def hear(self, _connection: object, cursor: Any, statement: str, *_: object) -> None:
        if "count(*)" not in statement or "fact_key" not in statement:
            return
        self.heard.append(statement)
        asked = {"pid": cursor.connection.info.backend_pid, "key": CHANGE_LOCK}
        with self.engine.connect() as other:
            if other.scalar(_HOLDS_LOG, asked):
                self.locked.append(statement)


@contextmanager
def counting(engine: Engine) -> Iterator[Counts]:
    """Hears the statements of all engines; `engine` is one of the same server that may ask for its locks."""
    counts = Counts(engine)
    event.listen(Engine, "before_cursor_execute", counts.hear)
    try:
        yield counts
    finally:
        event.remove(Engine, "before_cursor_execute", counts.hear)
