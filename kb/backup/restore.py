"""Restore of a backup, into an empty database and in one transaction; and what a newer log says was erased since.

A backup brings back what was erased after it was made. The log of the newer life names those erasures, and they are
done again in the transaction that restores, so nobody ever sees the base without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg import sql
from sqlalchemy import Table, exists, func, select, text, true
from sqlalchemy.orm import Session

from colmlm.kb.access import browser_sessions
from colmlm.kb.backup.newer_log import NewerLog, read_newer_log
from colmlm.kb.backup.write import Archive, Backup, Heard, open_backup, tables
from colmlm.kb.erasure.verbs import erase_facts
from colmlm.kb.errors import BackupRefused, DatabaseNotEmpty, NewerLogNeeded
from colmlm.kb.facts.edits import delete_facts
from colmlm.kb.keys import keysets
from colmlm.kb.log import audit
from colmlm.kb.log.witness import Head, hash_at
from colmlm.kb.store.database import connection_of, head_revision
from colmlm.kb.tables import Change, Fact, FactKey, Keyset, Secret

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class Repeated:
    """An erasure of the newer log, change `seq` there, that was done again as change `seq_here` for `fact_ids`."""

    seq: int
    at: str
    fact_ids: tuple[int, ...]
    seq_here: int


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did, and by which newer log, None where it went without: see `kb.backup.newer_log`.

    `erased_again` are the facts of `repeated`, `deleted_since` those that the newer log deleted and `deleted_again`
    those of them that were deleted here too, on request. `sealed` are changes of that log which were passed over.
    """

    backup: Backup
    log_file: str | None
    log_head: Head | None
    without_later_erasures: bool
    repeated: tuple[Repeated, ...]
    erased_again: tuple[int, ...]
    deleted_since: tuple[int, ...]
    deleted_again: tuple[int, ...]
    sealed: tuple[int, ...] = ()

    @property
    def needs_log(self) -> bool:
        """Whether a restore would be refused as it was asked for: a dry run says so, where others raise."""
        return self.log_head is None and not self.without_later_erasures


def restore_backup(
    kb: Store,
    file: Path,
    *,
    actor: str,
    log_file: Path | None = None,
    without_later_erasures: bool = False,
    keys: Collection[str] = (),
    reapply_deletes: bool = False,
    dry_run: bool = False,
    on_bytes: Heard = lambda _: None,
) -> RestoreReport:
    """Fill an empty, migrated database from a backup: all of it or, on an error or a kill, nothing.

    With the exported log of the newer life its erasures are done again. Raises `NewerLogNeeded` where there is none,
    unless `without_later_erasures` says that what was erased after the backup may come back. `keys` are fingerprints,
    one of which must have signed the backup and one the log. `dry_run` does everything and rolls back.
    Raises `BackupRefused`, `DatabaseNotEmpty`, `LogRefused`, `SignatureRefused`.
    """
    with open_backup(file, keys) as archive, kb.sessions() as session:
        backup = archive.backup
        _require_migration(archive)
        newer = None if log_file is None else read_newer_log(log_file, backup, keys)
        if newer is None and not (without_later_erasures or dry_run):
            raise NewerLogNeeded(backup.seq, backup.at)
        _require_empty(session)
        _fill(session, archive, on_bytes)
        _require_log(session, archive)
        report = _catch_up(session, backup, newer, actor, reapply_deletes, without_later_erasures)
        session.rollback() if dry_run else session.commit()
    return report


def _require_migration(archive: Archive) -> None:
    if (made := archive.manifest["migration"]) != head_revision():
        raise BackupRefused(
            str(archive.file),
            f"it is of migration {made}, this program of {head_revision()}; restore with the program that made it",
        )


def _require_empty(session: Session) -> None:
    """Lock everything, so that it stays empty, and raise `DatabaseNotEmpty` where it is not."""
    names = sql.SQL(", ").join(sql.Identifier(table.name) for table in tables())
    connection_of(session).execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(names))
    for table in tables():
        if table.name != Secret.__tablename__ and session.scalar(select(exists().select_from(table))):
            raise DatabaseNotEmpty(table.name)


def _fill(session: Session, archive: Archive, on_bytes: Heard) -> None:
    """Copy every table in. The secret comes from the backup too, or no digest in the log would hold."""
    session.execute(text("DELETE FROM secret"))
    described = {table["name"]: table for table in archive.manifest["tables"]}
    if set(described) != {table.name for table in tables()}:
        raise BackupRefused(str(archive.file), "it does not hold the tables of this program")
    done = 0
    for table in tables():
        if table.name == FactKey.__tablename__:
            for keyset_id in session.scalars(select(Keyset.id).where(Keyset.state != "retired")):
                keysets.create_partition(session, keyset_id)
        with _any_order(session, table):
            done = _copy_in(session, archive, described[table.name], done, on_bytes)
    for name, value in archive.manifest["sequences"].items():
        session.execute(
            text("SELECT setval(CAST(:name AS regclass), :value)"), {"name": name, "value": value}
        )


@contextmanager
def _any_order(session: Session, table: Table) -> Iterator[None]:
    """Let the log's rows come as they lie in the archive, which need not be by number, and with the gaps they had."""
    if table.name != Change.__tablename__:
        yield
        return
    session.execute(text("ALTER TABLE change DISABLE TRIGGER change_in_order"))
    yield
    session.execute(text("ALTER TABLE change ENABLE TRIGGER change_in_order"))


def _copy_in(session: Session, archive: Archive, table: dict[str, Any], done: int, on_bytes: Heard) -> int:
    columns = sql.SQL(", ").join(map(sql.Identifier, table["columns"]))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)")
    with connection_of(session).cursor() as cursor:
        with cursor.copy(statement.format(sql.Identifier(table["name"]), columns)) as copy:
            for block in archive.blocks(table):
                copy.write(block)
                done += len(block)
                on_bytes(done)
        if cursor.rowcount != table["rows"]:
            raise BackupRefused(
                str(archive.file), f"{table['name']} has {cursor.rowcount} rows, not {table['rows']}"
            )
    return done


def _require_log(session: Session, archive: Archive) -> None:
    """Raise `BackupRefused` where the log is not the one that the manifest names.

    Breaks that the log had when it was backed up come back with it: no base could be had from its backups otherwise.
    """
    head, said = audit.head_seq(session), archive.manifest["seq"]
    if (head, hash_at(session, head)) != (said, archive.manifest["hash"]):
        raise BackupRefused(
            str(archive.file), f"its change log ends with change {head}, not as its manifest says"
        )


def _catch_up(
    session: Session,
    backup: Backup,
    newer: NewerLog | None,
    actor: str,
    reapply_deletes: bool,
    without_later_erasures: bool,
) -> RestoreReport:
    repeated = tuple(_repeat(session, newer, actor)) if newer else ()
    deleted = _facts(session, newer.deleted, Fact.deleted_seq.is_(None)) if newer else []
    if newer and reapply_deletes:
        _delete_again(session, newer, deleted, actor)
    browser_sessions.end_all(session)  # who had signed out or lost the key since would be in again
    _note(session, backup, newer, actor)
    return RestoreReport(
        backup=backup,
        log_file=newer.file if newer else None,
        log_head=newer.head if newer else None,
        without_later_erasures=without_later_erasures and newer is None,
        repeated=repeated,
        erased_again=tuple(sorted({fact_id for erasure in repeated for fact_id in erasure.fact_ids})),
        deleted_since=tuple(deleted),
        deleted_again=tuple(deleted) if reapply_deletes else (),
        sealed=newer.sealed if newer else (),
    )


def _note(session: Session, backup: Backup, newer: NewerLog | None, actor: str) -> None:
    """Write into the restored log that it went on from a backup, and with which newer log."""
    pending = audit.begin(session, actor, f"restored from the backup of change {backup.seq}")
    seq, hash_ = (newer.head.seq, newer.head.hash) if newer else (None, None)
    payload = {"backup": {"seq": backup.seq, "hash": backup.hash}, "newer_log": {"seq": seq, "hash": hash_}}
    audit.append(session, pending, "restore-backup", payload=payload)


def _repeat(session: Session, newer: NewerLog, actor: str) -> Iterator[Repeated]:
    for erasure in newer.erasures:
        if known := _facts(session, erasure.fact_ids, true()):
            reason = f"erased by change {erasure.seq} of the log that went on after this backup"
            reach = erasure.mentions or "same-document"
            done = erase_facts(session, known, actor, reason, mentions=reach)
            if done.seq is not None:  # else they were erased before, and nothing says them
                yield Repeated(erasure.seq, erasure.at, done.fact_ids, done.seq)


def _delete_again(session: Session, newer: NewerLog, deleted: Sequence[int], actor: str) -> None:
    for abstain in (False, True):
        if chosen := [fact_id for fact_id in deleted if (fact_id in newer.abstaining) is abstain]:
            reason = "deleted in the log that went on after this backup"
            delete_facts(session, chosen, actor, reason, abstain=abstain)


def _facts(session: Session, fact_ids: Iterable[int], state: Any) -> list[int]:
    """Those of these facts that the restored base has, in this state. Later ones it never had."""
    statement = select(Fact.id).where(Fact.id == func.any(list(fact_ids)), state).order_by(Fact.id)
    return list(session.scalars(statement))
