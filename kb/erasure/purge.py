"""Purge: takes erasures from "not retrievable" to "out of the files", level by level, and says where it had to stop.

1 not retrievable   the transaction is committed
2 out of indexes    of this process, and of every snapshot in its index directory and in the shared place
3 out of the heap   the tables are rewritten, and the statistics on their columns
4 out of the WAL    no segment is left that is older than the rewritten tables

Nothing here knows which facts were erased: each level makes files hold only what the database still says.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from psycopg.errors import Diagnostic
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from colmlm.kb.erasure.indexes import AGAIN, Heard, LevelNotReached, out_of_indexes
from colmlm.kb.erasure.records import Level
from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable, LockHeld, SharedSnapshotsUnavailable
from colmlm.kb.lookup.searchable import SearchableStore

NAMES = ("not retrievable", "out of indexes and snapshots", "out of the heap", "out of the write-ahead log")

# Everything that holds a text or a key of a fact.
TABLES = (
    "document",
    "sentence",
    "fact",
    "fact_version",
    "fact_past",
    "fact_key",
    "generation",
    "attribution",
    "feedback",
    "forget_run",
    "job",
    "erasure_request",
    "tombstone",
    "idempotency",
    "question",
    "question_outcome",
)
STATISTICS = ("pg_statistic", "pg_statistic_ext_data")
TRIES = 5
LOCK_SECONDS = 60


class _Notice(NamedTuple):
    """A notice or warning that the server sent with the result of a statement."""

    is_warning: bool
    message: str
    detail: str


def reached(levels: Sequence[Level]) -> int:
    """Gives the last level that is reached together with every level before it."""
    last = 0
    for level in levels:
        if level.state != "reached":
            break
        last = level.level
    return last


def purge(kb: SearchableStore, *, now: bool, on_step: Heard) -> tuple[Level, ...]:
    """Takes the committed erasures of this database to level 2, or with `now` as far as the server permits."""
    first = Level(
        1, NAMES[0], "reached", "Databases restored from older backups hold it again; erase it there too."
    )
    second = _attempt(2, lambda: out_of_indexes(kb, on_step))
    if not now:
        return first, second, *map(_not_asked, (3, 4))
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        third = _attempt(3, lambda: _out_of_the_heap(connection, on_step))
        fourth = _attempt(4, lambda: _out_of_the_wal(connection, on_step))
    return first, second, third, fourth


def _attempt(level: int, act: Callable[[], str]) -> Level:
    try:
        return Level(level, NAMES[level - 1], "reached", act())
    except LevelNotReached as stopped:
        return Level(level, NAMES[level - 1], stopped.state, stopped.left, stopped.remedy)
    except (CandidatesUnavailable, CandidatesRefused, SharedSnapshotsUnavailable, LockHeld) as error:
        return Level(level, NAMES[level - 1], "left", str(error), _REMEDIES[level])
    except DBAPIError as error:
        cause = " ".join(str(error.orig).split())
        return Level(level, NAMES[level - 1], "refused", f"the server said: {cause}", _REMEDIES[level])


_REMEDIES = {
    2: AGAIN,
    3: f"The operator of the server runs, as a superuser: VACUUM (FULL, ANALYZE) {', '.join(TABLES)}; "
    f"VACUUM FULL {', '.join(STATISTICS)};",
    4: "The operator of the server runs, as a superuser: ALTER SYSTEM SET wal_recycle = off; pg_reload_conf(); "
    "then pg_switch_wal() and CHECKPOINT until pg_wal holds no segment from before; ALTER SYSTEM RESET wal_recycle;",
}
_LEFT = {
    3: "dead rows in the files of the tables, until these are rewritten; autovacuum does not clear them",
    4: "records in the write-ahead log, until its segments have been removed or overwritten",
}


def _not_asked(level: int) -> Level:
    remedy = "Run: colmlm erase --now"
    return Level(level, NAMES[level - 1], "left", _LEFT[level], remedy)


def _out_of_the_heap(connection: Connection, on_step: Heard) -> str:
    """Rewrites the tables, then the statistics, which hold the commonest values of each column."""
    with _notices(connection) as notices:
        connection.execute(text(f"SET lock_timeout = '{LOCK_SECONDS:d}s'"))
        try:
            for table in TABLES:
                on_step(f"Rewriting {table}")
                _rewrite(connection, f"VACUUM (FULL, ANALYZE, VERBOSE) {table}", notices)
            for table in STATISTICS:
                on_step(f"Rewriting {table}")
                _rewrite(connection, f"VACUUM (FULL, VERBOSE) {table}", notices)
        finally:
            connection.execute(text("RESET lock_timeout"))
    on_step("Waiting for a checkpoint")
    # The old files of a rewritten table are unlinked by the next checkpoint.
    connection.execute(text("CHECKPOINT"))
    return "Blocks that the file system has freed are not overwritten."


def _rewrite(connection: Connection, statement: str, notices: list[_Notice]) -> None:
    """Runs a VACUUM FULL until it leaves no dead row. Transactions older than the erasure keep dead rows."""
    for attempt in range(TRIES):
        notices.clear()
        connection.execute(text(statement))
        if skipped := [notice.message for notice in notices if notice.is_warning]:
            raise LevelNotReached("refused", f"the server said: {skipped[0]}", _REMEDIES[3])
        if not any(map(_keeps_dead_rows, notices)):
            return
        time.sleep(0.2 * (attempt + 1))
    holders = connection.scalar(_HOLDERS)
    raise LevelNotReached(
        "left",
        f"dead rows that another transaction may still read (backends or slots: {holders or 'not shown to this role'})",
        "End these transactions, then run: colmlm erase --now",
    )


def _keeps_dead_rows(notice: _Notice) -> bool:
    """Tells whether a notice of VACUUM FULL VERBOSE counts any: "3 dead row versions cannot be removed yet."."""
    count = re.match(r"\D*?(\d+) ", notice.detail)
    return count is not None and int(count[1]) > 0


_HOLDERS = text("""
SELECT string_agg(name, ', ') FROM (
    SELECT pid::text AS name FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL SELECT slot_name FROM pg_replication_slots WHERE coalesce(xmin, catalog_xmin) IS NOT NULL
    UNION ALL SELECT gid FROM pg_prepared_xacts
) AS holders
""")


@contextmanager
def _notices(connection: Connection) -> Iterator[list[_Notice]]:
    """Collects the notices that the server sends while the block runs."""
    heard: list[_Notice] = []

    def hear(said: Diagnostic) -> None:  # `said` is only valid during this call, so its fields are copied
        heard.append(
            _Notice(
                said.severity_nonlocalized == "WARNING", said.message_primary or "", said.message_detail or ""
            )
        )

    driver = connection.connection.driver_connection
    assert driver is not None
    driver.add_notice_handler(hear)
    try:
        yield heard
    finally:
        driver.remove_notice_handler(hear)


def _out_of_the_wal(connection: Connection, on_step: Heard) -> str:
    """Moves the log past all present segments, and has checkpoints remove these instead of keeping them for reuse."""
    _require_removable(connection)
    on_step("Clearing the write-ahead log")
    with _without_recycling(connection):
        # A segment kept for reuse is renamed to a future segment, and still holds its old records.
        last = max(_segments(connection))
        for _ in range(2 * len(_segments(connection)) + 8):
            while (current := _scalar(connection, _CURRENT)) <= last:
                connection.execute(_NEXT)
            connection.execute(text("CHECKPOINT"))
            redo = _scalar(connection, "SELECT substr(redo_wal_file, 9) FROM pg_control_checkpoint()")
            if redo > last and min(_segments(connection)) >= redo:
                return "The rest of the log is of after the rewriting."
            on_step(f"Clearing the write-ahead log: at segment {current}")
            connection.execute(_NEXT)
    raise LevelNotReached(
        "left", "segments of the log that checkpoints do not remove", "See wal_keep_size; run it again."
    )


def _require_removable(connection: Connection) -> None:
    """Stops where removing the segments would not be enough, or where that could not be checked."""
    obstacles = {
        "archive_mode is not off: archived segments hold it": "SELECT current_setting('archive_mode') <> 'off'",
        "wal_compression is on: a scan could not tell": "SELECT current_setting('wal_compression') <> 'off'",
        "replication slots keep segments, standbys copies": "SELECT EXISTS (SELECT FROM pg_replication_slots)",
        "wal_keep_size keeps segments": "SELECT current_setting('wal_keep_size') NOT IN ('0', '0MB')",
        "the server is a standby": "SELECT pg_is_in_recovery()",
    }
    for obstacle, question in obstacles.items():
        if connection.scalar(text(question)):
            raise LevelNotReached("left", obstacle, "Settle that, then run: colmlm erase --now")


_CURRENT = "SELECT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 9)"
# Postgres switches segments only where something was written since the last switch: so a message is written first.
_NEXT = text("SELECT pg_logical_emit_message(false, 'colmlm', ''), pg_switch_wal()")


def _segments(connection: Connection) -> list[str]:
    """Gives the names of the segments in pg_wal without their timeline, so that they sort as the log uses them."""
    statement = "SELECT substr(name, 9) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'"
    return list(connection.scalars(text(statement)))


def _scalar(connection: Connection, statement: str) -> str:
    return str(connection.scalar(text(statement)))


@contextmanager
def _without_recycling(connection: Connection) -> Iterator[None]:
    """Makes checkpoints remove old segments while the block runs, then sets `wal_recycle` back to what it was."""
    before = connection.scalar(
        text(
            "SELECT setting FROM pg_file_settings WHERE name = 'wal_recycle' AND sourcefile LIKE '%auto.conf'"
        )
    )
    connection.execute(text("ALTER SYSTEM SET wal_recycle = off"))
    try:
        _reload(connection)
        yield
    finally:
        undo = f"SET wal_recycle = {before}" if before in ("on", "off") else "RESET wal_recycle"
        connection.execute(text(f"ALTER SYSTEM {undo}"))
        _reload(connection)


def _reload(connection: Connection) -> None:
    connection.execute(text("SELECT pg_reload_conf()"))
    time.sleep(0.5)  # the checkpointer gets a signal, and Postgres does not say when it has read the file
