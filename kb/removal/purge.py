"""Purge: takes erasures from "not retrievable" to "out of the files", level by level, and says where it had to stop.

1 not retrievable   the transaction is committed
2 out of indexes    of this process, and of every snapshot in its index directory and in the shared place
3 out of the heap   the tables are rewritten, and the statistics on their columns
4 out of the WAL    no page is left there that is older than the rewritten tables

Nothing here knows which facts were erased: each level makes files hold only what the database still says.
A level is reached when the catalog and the files say so. What the server says in words decides nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from psycopg.errors import Diagnostic
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from colmlm.kb.errors import (
    CandidatesRefused,
    CandidatesUnavailable,
    KBError,
    LockHeld,
    NoActiveKeyset,
    SharedSnapshotsUnavailable,
)
from colmlm.kb.log import audit
from colmlm.kb.lookup import shared, snapshots
from colmlm.kb.lookup.remote import compact_collection
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.lookup.shared import await_turns, prune_snapshots
from colmlm.kb.lookup.snapshots import remove_orphans
from colmlm.kb.removal.records import Level
from colmlm.kb.removal.sealing import refresh_key_file
from colmlm.kb.store.waits import holder_of
from colmlm.kb.tables import TableRow

NAMES = ("not retrievable", "out of indexes and snapshots", "out of the heap", "out of the write-ahead log")

# All of them: which of them can hold a text or a key of a fact would be one more list to keep.
TABLES = tuple(table.name for table in TableRow.metadata.sorted_tables)
STATISTICS = ("pg_statistic", "pg_statistic_ext_data")
PURGE_LOCK = 0x636F6C6D0C
LOCK_SECONDS = 60
WAIT_SECONDS = 5.0
PASSES = 4
COMPACT_SECONDS = 120.0
_TRIES = 5
_AGAIN = "colmlm erase --now"

Heard = Callable[[str], None]
T = TypeVar("T")


class LevelNotReached(Exception):
    """Raised where a level cannot be reached, with the state to report, what is left and what to do."""

    def __init__(self, state: str, left: str, remedy: str) -> None:
        self.state, self.left, self.remedy = state, left, remedy


# Indexes: the level of an erasure at which no index, no snapshot and no collection elsewhere holds an erased key.
#
# It counts only where everything that the database names was looked at. A place that is not the servers', a file that
# is not there and a server that does not answer leave it open, and are named.

_REBUILD = "Run it again; the index can be rebuilt from the database, and so can a collection elsewhere."
_PLACE = (
    "Set COLMLM_SHARED_SNAPSHOTS as the servers have it, and mount it where it is a directory; then run it again. "
    "What is gone for good is forgotten by: colmlm doctor --data --repair"
)
_SERVER = (
    "Set COLMLM_MILVUS_URI as the servers have it and run it again. A collection that went with its server, or whose "
    "server has another address now, is forgotten by: colmlm doctor --data --repair"
)
_UPLOADS = (
    "Parts of uploads to S3 are seen and dropped with s3:ListBucketMultipartUploads and s3:AbortMultipartUpload; "
    "without these the bucket needs a rule that ends them."
)


def purge_indexes(kb: SearchableStore, on_step: Heard) -> str:
    """Remove erased keys from the index, snapshots and collections, and say what other processes still hold."""
    on_step("Removing keys from the index and its snapshots")
    with suppress(NoActiveKeyset, CandidatesRefused, CandidatesUnavailable):  # told of below
        kb.lookups.catch_up()
    with kb.sessions() as session:
        directory = kb.settings.index_directory / audit.database_id(session)
    for manifest in sorted(directory.glob("keyset-*.json")):
        keyset_id = int(manifest.stem.removeprefix("keyset-"))
        try:
            kb.searcher.prepare(keyset_id)
        except LockHeld:
            raise
        except KBError:  # a keyset that is retired or gone: nobody opens its snapshot again
            manifest.unlink(missing_ok=True)
    with kb.sessions() as session:
        remove_orphans(session, kb.settings.index_directory)
    return (
        _purge_shared_place(kb, on_step)
        + _purge_collections(kb, on_step)
        + (
            "Other running processes answer without it already, and drop its keys from memory at their next lookup. "
            "Snapshots of other machines are rewritten when they are next saved."
        )
    )


def _purge_shared_place(kb: SearchableStore, on_step: Heard) -> str:
    """Replace shared snapshots older than an erasure, remove unused files, and say what the bucket keeps."""
    with kb.sessions.begin() as session:
        if (folder := shared.folder_of(session, kb.settings)) is None:
            if said := shared.describe_unset_shared_place(session, kb.settings):
                raise LevelNotReached("left", said, _PLACE)
            return ""
        await_turns(session)
        if doubts := shared.snapshot_doubts(session, folder):
            raise LevelNotReached("left", "; ".join(doubts.values()), _PLACE)
    for _ in range(_TRIES):
        with kb.sessions() as session:
            noted = shared.noted_snapshots(session).items()
            outlived = [keyset_id for keyset_id, one in noted if shared.may_hold_erased_keys(session, one)]
        for keyset_id in outlived:
            on_step(f"Replacing the shared snapshot of keyset {keyset_id}")
            kb.searcher.prepare(keyset_id, share=True)
        if not outlived:
            break
    else:
        raise LevelNotReached("left", f"{folder.where}: facts are being erased again and again", _REBUILD)
    with kb.sessions.begin() as session:
        prune_snapshots(session, folder)
        uploads = folder.unfinished_uploads()
        left = shared.list_leftovers(session, folder, uploads)
    if left:
        said = f"{folder.where}: another process is writing {', '.join(left)}, or it may not be removed"
        raise LevelNotReached("left", said, f"{_REBUILD} {_UPLOADS}")
    return (f"{uploads.unlisted}. {_UPLOADS} " if uploads.unlisted else "") + (
        "A bucket that keeps versions of its objects, or (other than S3) parts of unfinished uploads, keeps those "
        "until its rules end them. "
    )


def _purge_collections(kb: SearchableStore, on_step: Heard) -> str:
    """Have Milvus remove deleted keys from its collections, and say what its servers keep after that.

    Collections of keysets that answer nothing, retired or not yet filled, are dropped.
    """
    with kb.sessions() as session:
        found = snapshots.named_collections(session, kb.settings)
    for one in found:
        on_step(f"Taking deleted keys out of {one.there.where}")
        if (doubt := one.doubt()) is not None:
            raise LevelNotReached("left", f"{one.there.where}: {doubt}", _SERVER)
        with kb.sessions.begin() as session:
            kept = one.drop(session)
            if kept is not None and not compact_collection(
                session, kept.keyset_id, kept.there, COMPACT_SECONDS
            ):
                where = kept.there.where
                raise LevelNotReached("left", f"{where} did not confirm that it was compacted", _REBUILD)
    if not found:
        return ""
    return (
        "Milvus has compacted or dropped what it searches; it deletes the files from before after "
        "dataCoord.gc.dropTolerance, and its message log ends after its retention. "
    )


def last_level_reached(levels: Sequence[Level]) -> int:
    """Give the last level that is reached with all levels before it; 0 if the first is not."""
    last = 0
    for level in levels:
        if level.state != "reached":
            break
        last = level.level
    return last


def purge_erased(kb: SearchableStore, *, now: bool, on_step: Heard) -> tuple[Level, ...]:
    """Take the erasures so far to level 2 (out of indexes), or with `now` as far as possible. Give all four levels."""
    _try_to_restore_recycling(kb.engine)
    said = "Databases restored from older backups hold it again; erase it there too."
    first = Level(1, NAMES[0], "reached", refresh_key_file(kb) + said)
    second = _attempt(2, lambda: purge_indexes(kb, on_step))
    if not now:
        return first, second, *map(_not_asked, (3, 4))
    try:
        return first, second, *_purge_files(kb, on_step)
    finally:
        _try_to_restore_recycling(kb.engine)


def _try_to_restore_recycling(engine: Engine) -> None:
    """Set `wal_recycle` back, unless the server does not answer: then the next erasure sets it back."""
    with suppress(SQLAlchemyError):
        restore_recycling(engine)


def _purge_files(kb: SearchableStore, on_step: Heard) -> tuple[Level, Level]:
    """Attempt levels 3 (heap) and 4 (WAL) under the lock. Without 3 the next vacuum would write the text to the WAL."""
    connections: list[Connection] = []
    with ExitStack() as held:

        def out_of_the_heap() -> str:
            connection = held.enter_context(kb.engine.connect())
            connections.append(connection.execution_options(isolation_level="AUTOCOMMIT"))
            held.enter_context(hold_purge_lock(kb.engine, connection, on_step))
            return _purge_heap(connection, on_step)

        third = _attempt(3, out_of_the_heap)
        if third.state != "reached":
            return third, Level(4, NAMES[3], "left", _LEFT[4], "Level 3 comes first.")
        return third, _attempt(4, lambda: _purge_wal(connections[0], on_step))


def _attempt(level: int, act: Callable[[], str]) -> Level:
    try:
        return Level(level, NAMES[level - 1], "reached", act())
    except LevelNotReached as stopped:
        return Level(level, NAMES[level - 1], stopped.state, stopped.left, stopped.remedy)
    except (CandidatesUnavailable, CandidatesRefused, SharedSnapshotsUnavailable, LockHeld) as error:
        return Level(level, NAMES[level - 1], "left", str(error), _REMEDIES[level])
    except SQLAlchemyError as error:  # of the server, or of the pool of connections
        cause = " ".join(str(getattr(error, "orig", error)).split())
        return Level(level, NAMES[level - 1], "refused", f"the server said: {cause}", _REMEDIES[level])


_REMEDIES = {
    2: _REBUILD,
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
    return Level(level, NAMES[level - 1], "left", _LEFT[level], f"Run: {_AGAIN}")


@contextmanager
def hold_purge_lock(
    engine: Engine, connection: Connection, on_step: Heard, seconds: float = LOCK_SECONDS
) -> Iterator[None]:
    """Hold the lock of purges in the block, and limit waits for locks of tables to `LOCK_SECONDS`.

    Raises `LevelNotReached` if another purge holds it longer than `seconds`. The lock ends with the connection.
    """
    lock, deadline, other = {"key": PURGE_LOCK}, time.monotonic() + seconds, None
    # A statement that waits for the lock has a snapshot, and that would keep the other purge from level 3.
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), lock):
        if other is None:
            other = holder_of(engine, PURGE_LOCK) or "it has just ended"
            on_step(f"Waiting for another purge: {other}")
        if time.monotonic() >= deadline:
            raise LevelNotReached("left", f"another purge is under way: {other}", f"Then run: {_AGAIN}")
        time.sleep(0.1)
    try:
        connection.execute(text(f"SET lock_timeout = '{LOCK_SECONDS:d}s'"))
        yield
    finally:
        if not connection.invalidated:  # by an outage, which has ended both
            connection.execute(text("RESET lock_timeout"))
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), lock)


def _look_until_none(look: Callable[[], T]) -> T:
    """Call `look` until it finds nothing, at most for `WAIT_SECONDS`, and give what it found last."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _purge_heap(connection: Connection, on_step: Heard) -> str:
    """Rewrite the tables, then the statistics, which hold the commonest values of each column."""
    begun = _await_older_snapshots(connection)
    for table in TABLES:
        on_step(f"Rewriting {table}")
        _rewrite(connection, "FULL, ANALYZE", table, begun)
    for statement in _DROP_STATISTICS:
        connection.execute(statement, {"parts": _table_oids(connection, TABLES), "begun": begun})
    begun = _await_older_snapshots(connection)
    for table in STATISTICS:
        on_step(f"Rewriting {table}")
        _rewrite(connection, "FULL", table, begun)
    on_step("Waiting for a checkpoint")
    # The old files of a rewritten table are unlinked by the next checkpoint.
    connection.execute(text("CHECKPOINT"))
    if files := _look_until_none(lambda: connection.scalars(_ORPHANS).all()):
        raise LevelNotReached(
            "left",
            f"files that no table has, as a crash of the server leaves them: {', '.join(files)}",
            f"Unless an index is being built: stop the server, remove them, start it and run: {_AGAIN}",
        )
    return "Blocks that the file system has freed are not overwritten."


def _await_older_snapshots(connection: Connection) -> str:
    """Give the next transaction's id (xid), once no snapshot is older. Raises `LevelNotReached` if an older one stays.

    From then on a row that was dead before is removed by any VACUUM FULL, since no later snapshot sees it.
    """
    begun = str(connection.scalar(text("SELECT CAST(pg_snapshot_xmax(pg_current_snapshot()) AS xid)")))
    if _look_until_none(lambda: _holders(connection, begun)):
        raise _rows_held(connection, begun)
    return begun


def _rewrite(connection: Connection, options: str, table: str, begun: str) -> None:
    """Rewrite a table, and require that it has a new file, without the rows that were dead at `begun`.

    VACUUM FULL writes down in `relfrozenxid` since when rows are kept for the snapshots of others.
    """
    known = {"parts": _table_oids(connection, [table]), "begun": begun}
    before = {part.oid: part.file for part in connection.execute(_STANDING, known)}
    with _warnings(connection) as warnings:
        connection.execute(text(f"VACUUM ({options}) {table}"))
    after = connection.execute(_STANDING, known).all()
    if any(part.file == before[part.oid] for part in after):
        cause = f"said: {warnings[0]}" if warnings else "gave no reason"
        raise LevelNotReached(
            "refused", f"the server did not rewrite the table {table}, and {cause}", _REMEDIES[3]
        )
    if not all(part.is_clear for part in after):
        raise _rows_held(connection, begun)


def _table_oids(connection: Connection, tables: Sequence[str]) -> list[int]:
    """Give the oids of these tables and of their partitions."""
    return list(connection.scalars(_PARTS, {"tables": list(tables)}))


_PARTS = text("""
SELECT CAST(CAST(name AS regclass) AS oid) FROM unnest(CAST(:tables AS text[])) AS name
UNION SELECT relid FROM unnest(CAST(:tables AS text[])) AS name, pg_partition_tree(CAST(name AS regclass))
""")
_STANDING = text("""
SELECT oid, pg_relation_filenode(oid) AS file, age(relfrozenxid) <= age(CAST(:begun AS xid)) AS is_clear
FROM pg_class WHERE oid = ANY(CAST(:parts AS oid[])) AND relkind <> 'p'
""")


def _rows_held(connection: Connection, begun: str) -> LevelNotReached:
    holders = ", ".join(_holders(connection, begun)) or "not shown to this role, or over by now"
    return LevelNotReached(
        "left",
        f"dead rows that an older transaction may still read: {holders}",
        f"End these transactions, then run: {_AGAIN}",
    )


def _holders(connection: Connection, begun: str) -> Sequence[str]:
    return connection.scalars(_HOLDERS, {"begun": begun}).all()


# A snapshot is as old as the oldest transaction that ran when it was taken, in whatever database. The snapshots of
# another database do not count, and neither do those of a VACUUM. Statements are not read: they may hold a text.
_HOLDERS = text("""
WITH holder (name, xid) AS (
    SELECT format('process %s (%s, for %s s)', pid, coalesce(nullif(application_name, ''), backend_type),
                  round(extract(epoch FROM clock_timestamp() - xact_start))), oldest
    FROM pg_stat_activity a
    CROSS JOIN LATERAL unnest(ARRAY[
        backend_xid,
        CASE WHEN datid IS NULL OR datname = current_database() THEN backend_xmin END
    ]) AS oldest
    WHERE pid <> pg_backend_pid() AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
    UNION SELECT format('prepared transaction %s', gid), transaction FROM pg_prepared_xacts
    UNION SELECT format('replication slot %s', slot_name), oldest
    FROM pg_replication_slots CROSS JOIN LATERAL unnest(ARRAY[xmin, catalog_xmin]) AS oldest
)
SELECT DISTINCT name FROM holder WHERE age(xid) > age(CAST(:begun AS xid)) ORDER BY name
""")

# ANALYZE keeps what it knows of a table that has no rows any more, or of a column that it may not look at.
_DROP_STATISTICS = (
    text("""
DELETE FROM pg_statistic s WHERE age(s.xmin) > age(CAST(:begun AS xid)) AND starelid IN (
    SELECT unnest(CAST(:parts AS oid[]))
    UNION SELECT indexrelid FROM pg_index WHERE indrelid = ANY(CAST(:parts AS oid[]))
)
"""),
    text("""
DELETE FROM pg_statistic_ext_data d USING pg_statistic_ext s
WHERE age(d.xmin) > age(CAST(:begun AS xid)) AND d.stxoid = s.oid AND s.stxrelid = ANY(CAST(:parts AS oid[]))
"""),
)

# A file has no table before the transaction that makes it has ended, nor after the server has died with that.
_ORPHANS = text("""
SELECT folder || '/' || name
FROM (SELECT regexp_replace(pg_relation_filepath('pg_class'), '/[^/]*$', '')) AS d (folder), pg_ls_dir(folder) AS name
WHERE name ~ '^[0-9]+([._]|$)' AND pg_filenode_relation(0, CAST(substring(name FROM '^[0-9]+') AS oid)) IS NULL
  AND (pg_stat_file(folder || '/' || name, true)).size > 0
ORDER BY 1
""")


@contextmanager
def _warnings(connection: Connection) -> Iterator[list[str]]:
    """Collect the warnings that the server sends while the block runs."""
    heard: list[str] = []

    def hear(said: Diagnostic) -> None:  # `said` is only valid during this call, so its fields are copied
        if said.severity_nonlocalized == "WARNING":
            heard.append(said.message_primary or "")

    driver = connection.connection.driver_connection
    assert driver is not None
    driver.add_notice_handler(hear)
    try:
        yield heard
    finally:
        driver.remove_notice_handler(hear)


def _purge_wal(connection: Connection, on_step: Heard) -> str:
    """Move the WAL past all present segments, and have checkpoints remove these. Give a sentence on what remains."""
    _require_removable(connection)
    on_step("Clearing the write-ahead log")
    connection.execute(_NEXT)
    start = _scalar(connection, _CURRENT)
    for _ in range(PASSES):
        _stop_recycling(connection)
        on_step(f"Clearing the write-ahead log: at segment {_scalar(connection, _CURRENT)}")
        last = max(filter(_SEGMENT.fullmatch, _files(connection)))
        while _scalar(connection, _CURRENT) <= last:
            connection.execute(_NEXT)
        connection.execute(text("CHECKPOINT"))
        if not (stale := _stale_segments(connection, start)):
            return "The rest of the log is of after the rewriting."
    raise LevelNotReached(
        "left",
        f"files of the log with older records: {', '.join(stale[:5])}{' ...' if len(stale) > 5 else ''}",
        f"Another program may set wal_recycle, or keep segments. Then run: {_AGAIN}",
    )


def _require_removable(connection: Connection) -> None:
    """Raise `LevelNotReached` if copies of WAL segments may remain, or if that could not be checked."""
    obstacles = {
        "archive_mode is not off: archived segments hold it": (
            "SELECT current_setting('archive_mode') <> 'off'",
            "Set archive_mode = off and delete the archive",
        ),
        "wal_compression is on: a scan could not tell": (
            "SELECT current_setting('wal_compression') <> 'off'",
            "Set wal_compression = off and reload",
        ),
        "replication slots keep segments, standbys copies": (
            "SELECT EXISTS (SELECT FROM pg_replication_slots)",
            "Drop the slots and erase on the standbys",
        ),
        "wal_keep_size keeps segments": (
            "SELECT current_setting('wal_keep_size') NOT IN ('0', '0MB')",
            "Set wal_keep_size = 0 and reload",
        ),
        "the server is a standby": ("SELECT pg_is_in_recovery()", "Go to the primary"),
    }
    for obstacle, (question, remedy) in obstacles.items():
        if connection.scalar(text(question)):
            raise LevelNotReached("left", obstacle, f"{remedy}, then run: {_AGAIN}")


_CURRENT = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())"
# Postgres switches segments only where something was written since the last switch: so a message is written first.
_NEXT = text("SELECT pg_logical_emit_message(false, 'colmlm', ''), pg_switch_wal()")

_SEGMENT = re.compile("[0-9A-F]{24}")


def _files(connection: Connection) -> list[str]:
    """Give the names of all files in pg_wal that may hold records. `.history` and `.backup` are notes."""
    statement = r"SELECT name FROM pg_ls_waldir() WHERE name !~ '\.(history|backup)$'"
    return list(connection.scalars(text(statement)))


def _stale_segments(connection: Connection, start: str) -> list[str]:
    """Give the names of WAL files that hold a page from before the segment `start`, whatever these names say.

    A segment that is kept for reuse is renamed to a future one. So the position is read that each page states.
    """
    names = _files(connection)
    if stale := [name for name in names if name < start or not _SEGMENT.fullmatch(name)]:
        return stale
    pages = connection.execute(_PAGES, {"names": names}).all()
    end = int(connection.scalar(text("SELECT pg_current_wal_insert_lsn() - '0/0'")) or 0)
    # A page is written as a whole, over zeros, so what follows its header is as old as that.
    return sorted(
        {name for name, at, head in pages if int.from_bytes(head[8:16], "little") != at or at >= end}
    )


# The header of a page: magic number, flags, timeline, and its position in the log. Empty pages are left out.
_PAGES = text("""
SELECT name, start + at AS at, head
FROM (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_block_size') AS b (page),
     pg_ls_waldir() AS f,
     LATERAL (SELECT ('x' || substr(name, 9, 8))::bit(32)::bigint << 32
                   | ('x' || substr(name, 17, 8))::bit(32)::bigint * size) AS s (start),
     LATERAL generate_series(0, size - 1, page) AS at,
     LATERAL pg_read_binary_file('pg_wal/' || name, at, 16, true) AS head
WHERE name = ANY(:names) AND head <> decode(repeat('00', 16), 'hex')
""")


def _scalar(connection: Connection, statement: str) -> str:
    return str(connection.scalar(text(statement)))


# `wal_recycle` is off while the log is cleared, and a purge that is killed cannot set it back. So how its "off" is
# spelt says that a purge set it, and what stood in postgresql.auto.conf before: nothing, or "on".
_SPELT = {"fals": "RESET wal_recycle", "fal": "SET wal_recycle = on"}


def _stop_recycling(connection: Connection) -> None:
    """Make checkpoints remove old segments, until `restore_recycling`. Leave an operator's own "off" alone."""
    found = connection.execute(_RECYCLING).one_or_none()
    if found is None or found.recycles:
        spelt = "fals" if found is None else "fal"
        connection.execute(text(f"ALTER SYSTEM SET wal_recycle = {spelt}"))
    _reload(connection, "off")


def restore_recycling(engine: Engine) -> None:
    """Set `wal_recycle` back to what it was before a purge, also one that was killed, unless one still runs."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not connection.scalar(text("SELECT current_setting('is_superuser') = 'on'")):
            return  # a role that may not read the file may not have written it either
        found = connection.execute(_RECYCLING).one_or_none()
        if found is None or found.setting not in _SPELT or connection.scalar(_PURGING, {"key": PURGE_LOCK}):
            return
        connection.execute(text(f"ALTER SYSTEM {_SPELT[found.setting]}"))
        _reload(connection, "on")


_RECYCLING = text("""
SELECT setting, CAST(setting AS boolean) AS recycles FROM pg_file_settings
WHERE name = 'wal_recycle' AND sourcefile LIKE '%auto.conf' AND error IS NULL
""")
# In any database of the server, as the setting is the server's.
_PURGING = text("""
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
               AND classid::bigint = :key >> 32 AND objid::bigint = :key & 4294967295)
""")


def _reload(connection: Connection, awaited: str) -> None:
    """Have the server reload its settings, and wait until this backend has; the checkpointer is told then, too."""
    connection.execute(text("SELECT pg_reload_conf()"))
    _look_until_none(lambda: _scalar(connection, "SHOW wal_recycle") != awaited)
