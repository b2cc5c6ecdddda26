"""Restore of a backup, into an empty database and in one transaction; and what a newer log says was erased since.

A backup brings back what was erased after it was made. Given the log of the newer life, those erasures are done
again in the transaction that restores, so nobody ever sees the base without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg import sql
from sqlalchemy import exists, func, select, text
from sqlalchemy.orm import Session

from kb import audit, keysets
from kb.backup import Archive, Backup, Heard, open_backup, tables
from kb.database import connection_of, head_revision
from kb.erasure import erase_facts
from kb.errors import BackupRefused, DatabaseNotEmpty, LogRefused
from kb.facts import delete_facts
from kb.tables import Fact, FactKey, Keyset, Secret
from kb.witness import read_log

if TYPE_CHECKING:
    from kb.service import KnowledgeBase

DELETING = ("delete", "forget")


@dataclass(frozen=True, slots=True)
class Since:
    """What the newer log says happened to facts after the backup: erased by which change, and deleted at its end."""

    erased: dict[int, list[int]] = field(default_factory=dict)
    deleted: frozenset[int] = frozenset()
    abstaining: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did. `erased_again` are facts that the newer log erased, `deleted_since` those it deleted.

    `deleted_again` of the latter were deleted here too, on request.
    """

    backup: Backup
    erased_again: tuple[int, ...]
    deleted_since: tuple[int, ...]
    deleted_again: tuple[int, ...]


def restore_backup(
    kb: KnowledgeBase,
    file: Path,
    *,
    actor: str,
    log_file: Path | None = None,
    reapply_deletes: bool = False,
    dry_run: bool = False,
    on_bytes: Heard = lambda _: None,
) -> RestoreReport:
    """Fill an empty, migrated database from a backup: all of it or, on an error or a kill, nothing.

    With the exported log of the newer life its erasures are done again. `dry_run` does everything and rolls back.
    Raises `BackupRefused`, `DatabaseNotEmpty`, `LogRefused`, `SignatureRefused`.
    """
    with open_backup(file) as archive, kb.sessions() as session:
        _require_migration(archive)
        backup = archive.backup
        since = Since() if log_file is None else _read_since(log_file, backup)
        _require_empty(session)
        _fill(session, archive, on_bytes)
        _require_log(session, archive)
        report = _catch_up(session, backup, since, actor, reapply_deletes)
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
        done = _copy_in(session, archive, described[table.name], done, on_bytes)
    for name, value in archive.manifest["sequences"].items():
        session.execute(
            text("SELECT setval(CAST(:name AS regclass), :value)"), {"name": name, "value": value}
        )


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
    checked, first_break = audit.verify_chain(session)
    if first_break is not None or checked != archive.manifest["seq"]:
        raise BackupRefused(
            str(archive.file), f"its change log breaks at change {first_break or checked + 1}"
        )


def _read_since(log_file: Path, backup: Backup) -> Since:
    """What the log says after the backup's last change. Raises `LogRefused` unless it goes on from there."""
    what = log_file.name
    with log_file.open(encoding="utf-8") as lines:
        head, entries = read_log(lines, what)
        if head.database != backup.database:
            raise LogRefused(what, 0, f"it is of database {head.database}, the backup of {backup.database}")
        if head.seq < backup.seq:
            raise LogRefused(what, head.seq, f"it ends before the backup, which goes to change {backup.seq}")
        return _since(entries, backup, what)


def _since(entries: Iterable[dict[str, Any]], backup: Backup, what: str) -> Since:
    erased: dict[int, list[int]] = {}
    deleted: dict[int, bool] = {}
    for entry in entries:
        seq, kind, fact_ids = entry["seq"], entry["kind"], entry["fact_ids"]
        if seq == backup.seq and audit.entry_hash(entry) != backup.hash:
            raise LogRefused(
                what, seq, "it is not the change that the backup ends with: the log is of another life"
            )
        if seq <= backup.seq:
            continue
        if kind == "erase":
            erased[seq] = fact_ids
        elif kind in DELETING:
            deleted.update(dict.fromkeys(fact_ids, bool(entry["payload"].get("abstain"))))
        elif kind == "restore":
            deleted = {
                fact_id: abstain for fact_id, abstain in deleted.items() if fact_id not in set(fact_ids)
            }
    gone = {fact_id for fact_ids in erased.values() for fact_id in fact_ids}
    return Since(
        erased,
        frozenset(deleted) - gone,
        frozenset(fact_id for fact_id, abstain in deleted.items() if abstain) - gone,
    )


def _catch_up(
    session: Session, backup: Backup, since: Since, actor: str, reapply_deletes: bool
) -> RestoreReport:
    erased_again: list[int] = []
    for seq, fact_ids in since.erased.items():
        if known := _facts(session, fact_ids, Fact.erased_seq.is_(None)):
            erase_facts(
                session, known, actor, f"erased by change {seq} of the log that went on after this backup"
            )
            erased_again += known
    deleted = _facts(session, since.deleted, Fact.deleted_seq.is_(None))
    if reapply_deletes:
        for abstain in (False, True):
            chosen = [fact_id for fact_id in deleted if (fact_id in since.abstaining) is abstain]
            if chosen:
                reason = "deleted in the log that went on after this backup"
                delete_facts(session, chosen, actor, reason, abstain=abstain)
    return RestoreReport(
        backup=backup,
        erased_again=tuple(erased_again),
        deleted_since=tuple(deleted),
        deleted_again=tuple(deleted) if reapply_deletes else (),
    )


def _facts(session: Session, fact_ids: Iterable[int], state: Any) -> list[int]:
    """Those of these facts that the restored base has, in this state. Later ones it never had."""
    statement = select(Fact.id).where(Fact.id == func.any(list(fact_ids)), state).order_by(Fact.id)
    return list(session.scalars(statement))
