"""Restores a backup into an empty database in one transaction, and repeats what a newer log says of it.

A backup still holds what was erased after it was made, and answers with proposed facts where that was forbidden since.
It does not know of holds and retention rules that were set or ended since. The log of the base that went on names
these erasures, limits, holds and rules, and they are repeated in the transaction that
restores, so that nobody ever sees the base without them. Somebody who removed an erasure from a log could bring the
fact back. So a log is accepted only if it is complete, and signed by the key that signed the backup or by one that the
operator names.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg import sql
from sqlalchemy import Table, exists, func, select, text, true
from sqlalchemy.orm import Session

from colmlm.kb.access.access import end_all_sessions
from colmlm.kb.backup.sealed_rows import RowForm, RowOpener, erase_lost, join_rows, sealed_columns, split_rows
from colmlm.kb.backup.write import BLOCK, Archive, Backup, Heard, archive_tables, open_backup
from colmlm.kb.errors import (
    LogRefused,
    SignatureRefused,
    count_of,
    refusals,
    sealing_keys_needed,
    sealing_keys_unfit,
)
from colmlm.kb.facts import reading, sentences
from colmlm.kb.facts.edits import delete_facts, settle_review
from colmlm.kb.facts.records import Mentioned, ReviewVerdict
from colmlm.kb.facts.redaction import as_mentioned
from colmlm.kb.keys import keysets
from colmlm.kb.log import audit, signing
from colmlm.kb.log.audit import entry_hash
from colmlm.kb.log.chain import BLANKING, SEAL
from colmlm.kb.log.witness import Head, LogEntry, find_change_hash, read_log
from colmlm.kb.removal.erase import erase_facts
from colmlm.kb.removal.holds import PLACED, RELEASED, RULED, repeat_hold, repeat_release, repeat_rule
from colmlm.kb.removal.persons import places_here
from colmlm.kb.removal.sealing import default_key_file, read_key_file, write_key_file
from colmlm.kb.review.review import KIND, limit_to_accepted
from colmlm.kb.store.database import connection_of, head_revision
from colmlm.kb.tables import (
    ChangeRow,
    CorpusReviewRow,
    DocumentRow,
    FactKeyRow,
    FactRow,
    KeysetRow,
    SecretRow,
)

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store


_SIGNER_DECIDES = (
    "A backup brings texts and tokens, so its signer decides what is true here and who may enter."
)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore, and the newer log that it used (`log_file`; None: none).

    `erased_again` are the facts of `repeated`, `deleted_since` those that the newer log deleted, and `deleted_again`
    those of them that the restore deleted or rejected too, on request. `limited_again` lists limits to accepted facts.
    `sealed` are changes of that log that were ignored. `lost` are ids by table whose sealing keys were destroyed.
    """

    backup: Backup
    log_file: str | None
    log_head: Head | None
    without_later_erasures: bool
    repeated: tuple[RepeatedErasure, ...]
    erased_again: tuple[int, ...]
    deleted_since: tuple[int, ...]
    deleted_again: tuple[int, ...]
    limited_again: tuple[LaterLimit, ...] = ()
    sealed: tuple[int, ...] = ()
    lost: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def needs_log(self) -> bool:
        """Whether this restore needs a newer log that was not given. A dry run reports that; a real one raises."""
        return self.log_head is None and not self.without_later_erasures


def restore_backup(
    kb: Store,
    file: Path,
    *,
    actor: str,
    log_file: Path | None = None,
    without_later_erasures: bool = False,
    keys: Collection[str] = (),
    trust_signer: bool = False,
    reapply_deletes: bool = False,
    dry_run: bool = False,
    key_file: Path | None = None,
    identities: Path | None = None,
    on_bytes: Heard = lambda _: None,
) -> RestoreReport:
    """Fill an empty, migrated database from a backup: with all of it or, on an error or a kill, with nothing.

    It repeats the erasures and limits of the newer log in `log_file`. Raises `NewerLogNeeded` where that is None,
    unless `without_later_erasures` says that what was erased after the backup may come back. `keys` are fingerprints,
    one of which must have signed the backup and one the log. Without any, the key of this home must have signed the
    backup, unless `trust_signer`: its tokens let people in. `dry_run` does everything and rolls back. The keys of
    `key_file`, by default that of this home, open the texts. Texts whose keys were destroyed end as if they were
    erased. `identities` names the file of private keys for an encrypted backup. Raises `BackupRefused`,
    `DatabaseNotEmpty`, `LogRefused`, `SignatureRefused`.
    """
    with open_backup(file, keys, identities) as archive, kb.sessions() as session:
        backup = archive.backup
        if not (keys or trust_signer):
            _require_own_signer(kb.settings.home, archive)
        require_migration(archive)
        newer = None if log_file is None else read_newer_log(log_file, backup, keys)
        if newer is None and not (without_later_erasures or dry_run):
            raise refusals.newer_log_needed(backup.seq, backup.at)
        _require_empty(session)
        opener = _opener(archive, key_file or default_key_file(kb.settings), identities)
        _fill(session, archive, opener, on_bytes)
        _require_log(session, archive)
        lost = erase_lost(session, opener, actor) if opener else {}
        sentences.write_all_sentences(session)
        report = _catch_up(session, backup, newer, actor, reapply_deletes, without_later_erasures, lost)
        session.rollback() if dry_run else session.commit()
    if opener and not dry_run:
        write_key_file(kb, default_key_file(kb.settings), opener.keys.recipients)
    return report


def _opener(archive: Archive, key_file: Path, identities: Path | None) -> RowOpener | None:
    """Make the opener of a backup's sealed texts from a file of keys; None for the former format, without sealing."""
    if not archive.backup.is_sealed:
        return None
    file = str(archive.file)
    if not key_file.exists():
        raise sealing_keys_needed(file, str(key_file))
    found = read_key_file(key_file, identities)
    if found.database != archive.backup.database:
        raise sealing_keys_unfit(file, str(key_file), f"it is of database {found.database}")
    return RowOpener(found, file, str(key_file), archive.backup.seq)


def _require_own_signer(home: Path, archive: Archive) -> None:
    """Raise `SignatureRefused` where the key of this home did not sign the backup."""
    own, key = signing.own_key_names(home), archive.backup.key
    if own is None or own.fingerprint != key:
        raise SignatureRefused(
            str(archive.file),
            f"it was signed by key {key}, which is not the key of {home}",
            f"{_SIGNER_DECIDES} Compare that fingerprint with the one that `colmlm backup "
            f"create` or `verify` printed where it was made, and pass --key {key}. Or pass --key any.",
        )


def require_migration(archive: Archive) -> None:
    """Raise `BackupRefused` where the backup has the tables of another migration than this program's."""
    if (made := archive.manifest["migration"]) != head_revision():
        raise refusals.backup_refused(
            str(archive.file),
            f"it has migration {made}, but this program has {head_revision()}. Restore with the program that made it",
        )


def _require_empty(session: Session) -> None:
    """Lock every table, so that it stays empty. Raises `DatabaseNotEmpty` if one but the secret's has rows."""
    names = sql.SQL(", ").join(sql.Identifier(table.name) for table in archive_tables())
    connection_of(session).execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(names))
    for table in archive_tables():
        if table.name != SecretRow.__tablename__ and session.scalar(select(exists().select_from(table))):
            raise refusals.database_not_empty(table.name)


def _fill(session: Session, archive: Archive, opener: RowOpener | None, on_bytes: Heard) -> None:
    """Copy every table in, the secret too, without which no keyed digest of the backup could be checked."""
    session.execute(text("DELETE FROM secret"))
    described = {table["name"]: table for table in archive.manifest["tables"]}
    if set(described) != {table.name for table in archive_tables()}:
        raise refusals.backup_refused(str(archive.file), "it does not hold the tables of this program")
    done = 0

    def count_bytes(blocks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal done
        for block in blocks:
            yield block
            done += len(block)
            on_bytes(done)

    for table in archive_tables():
        if table.name == FactKeyRow.__tablename__:
            for keyset_id in session.scalars(select(KeysetRow.id).where(KeysetRow.state != "retired")):
                keysets.create_partition(session, keyset_id)
        with _allow_any_order(session, table):
            blocks = count_bytes(archive.blocks(described[table.name]))
            _copy_in(session, archive, described[table.name], _open_blocks(archive, opener, table, blocks))
    for name, value in archive.manifest["sequences"].items():
        session.execute(
            text("SELECT setval(CAST(:name AS regclass), :value)"), {"name": name, "value": value}
        )


@contextmanager
def _allow_any_order(session: Session, table: Table) -> Iterator[None]:
    """Let rows of the log be inserted in the order of the archive, which need not be by `seq`, and with gaps."""
    if table.name != ChangeRow.__tablename__:
        yield
        return
    session.execute(text("ALTER TABLE change DISABLE TRIGGER change_in_order"))
    yield
    session.execute(text("ALTER TABLE change ENABLE TRIGGER change_in_order"))


def _open_blocks(
    archive: Archive, opener: RowOpener | None, table: Table, blocks: Iterator[bytes]
) -> Iterator[bytes]:
    """Yield a table's rows as the database takes them, with texts opened. Raises `BackupRefused` for other bytes."""
    if opener is None or not sealed_columns(table):
        yield from blocks
        return
    form = RowForm.of(table, archive.backup.database)
    try:
        yield from join_rows(opener.open(split_rows(blocks), form), BLOCK)
    except (ValueError, struct.error) as error:
        raise refusals.backup_refused(
            str(archive.file), f"table {table.name} cannot be read: {error}"
        ) from error


def _copy_in(session: Session, archive: Archive, table: dict[str, Any], blocks: Iterator[bytes]) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, table["columns"]))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)")
    with connection_of(session).cursor() as cursor:
        with cursor.copy(statement.format(sql.Identifier(table["name"]), columns)) as copy:
            for block in blocks:
                copy.write(block)
        if cursor.rowcount != table["rows"]:
            raise refusals.backup_refused(
                str(archive.file),
                f"{table['name']} has {count_of(cursor.rowcount, 'row')}, not {table['rows']}",
            )


def _require_log(session: Session, archive: Archive) -> None:
    """Raise `BackupRefused` where the log does not end with the change that the manifest names.

    A log that had breaks when it was backed up is restored with them, since such a base must have backups too.
    """
    head, said = audit.head_seq(session), archive.manifest["seq"]
    if (head, find_change_hash(session, head)) != (said, archive.manifest["hash"]):
        raise refusals.backup_refused(
            str(archive.file), f"its change log ends with change {head}, not as its manifest says"
        )


def _catch_up(
    session: Session,
    backup: Backup,
    newer: NewerLog | None,
    actor: str,
    reapply_deletes: bool,
    without_later_erasures: bool,
    lost: Mapping[str, tuple[int, ...]],
) -> RestoreReport:
    for said in newer.releases if newer else ():  # what was held may have been erased later
        repeat_release(session, said, actor, f"released by change {said['seq']} {_LATER}")
    repeated = tuple(repeat_erasures(session, newer, actor)) if newer else ()
    deleted = live_facts(session, newer.deleted) if newer else []
    limited = tuple(repeat_limits(session, newer, actor)) if newer else ()
    if newer and reapply_deletes:
        repeat_deletions(session, newer, deleted, actor)
    for said in newer.holds if newer else ():
        repeat_hold(session, said, actor, f"placed by change {said['seq']} {_LATER}")
    for said in newer.rules if newer else ():
        repeat_rule(session, said, actor, f"set by change {said['seq']} {_LATER}")
    end_all_sessions(session)  # a session that was ended after the backup must not be valid again
    _log_restore(session, backup, newer, actor)
    return RestoreReport(
        backup=backup,
        log_file=newer.file if newer else None,
        log_head=newer.head if newer else None,
        without_later_erasures=without_later_erasures and newer is None,
        repeated=repeated,
        erased_again=tuple(sorted({fact_id for erasure in repeated for fact_id in erasure.fact_ids})),
        deleted_since=tuple(deleted),
        deleted_again=tuple(deleted) if reapply_deletes else (),
        limited_again=limited,
        sealed=newer.sealed if newer else (),
        lost=lost,
    )


def _log_restore(session: Session, backup: Backup, newer: NewerLog | None, actor: str) -> None:
    """Append to the restored log which backup the base was restored from, who signed it, and with which newer log."""
    pending = audit.begin_change(session, actor, f"restored from the backup of change {backup.seq}")
    seq, hash_ = (newer.head.seq, newer.head.hash) if newer else (None, None)
    payload = {
        "backup": {"seq": backup.seq, "hash": backup.hash, "key": backup.key},
        "newer_log": {"seq": seq, "hash": hash_},
    }
    audit.append_change(session, pending, "restore-backup", payload=payload)


# Repeats in a restored base what its newer log says: erasures, deletions, rejections, and limits to accepted
# facts.
#
# Session first; nothing commits.

_LATER = "in the log that went on after this backup"


@dataclass(frozen=True, slots=True)
class RepeatedErasure:
    """An erasure of `fact_ids`, change `seq` of the newer log, that the restore repeated as change `seq_here`."""

    seq: int
    at: str
    fact_ids: tuple[int, ...]
    seq_here: int


def repeat_erasures(session: Session, newer: NewerLog, actor: str) -> Iterator[RepeatedErasure]:
    """Erase what the newer log erased; yield each erasure that changed anything in the restored base."""
    for erasure in newer.erasures:
        known = _facts(session, erasure.fact_ids, true())
        plan = places_here(session, erasure.places)
        if known or _documents(session, erasure.documents) or plan.places:
            reason = f"erased by change {erasure.seq} of the log that went on after this backup"
            reach = erasure.mentions or "same-document"
            done = erase_facts(
                session,
                known,
                actor,
                reason,
                mentions=reach,
                document_ids=_documents(session, erasure.documents),
                plan=plan if plan.places else None,
            )
            if done.seq is not None:  # None where they were erased before and nothing says them
                yield RepeatedErasure(erasure.seq, erasure.at, done.fact_ids, done.seq)


def _documents(session: Session, document_ids: Sequence[int]) -> list[int]:
    """Give those of these documents that the restored base has and that are not erased."""
    here = DocumentRow.id == func.any(list(document_ids)), DocumentRow.erased_seq.is_(None)
    return list(session.scalars(select(DocumentRow.id).where(*here).order_by(DocumentRow.id)))


def repeat_deletions(session: Session, newer: NewerLog, deleted: Sequence[int], actor: str) -> None:
    """Delete or reject the facts with the ids `deleted`, as the newer log did."""
    rejected = [fact_id for fact_id in deleted if fact_id in newer.rejected]
    if rejected:
        facts = reading.fact_records(session, rejected).values()
        judged = [ReviewVerdict(fact.fact_id, "reject", fact.version, fact.review) for fact in facts]
        settle_review(session, judged, actor, f"rejected {_LATER}")
    for abstain in (False, True):
        left = [fact_id for fact_id in deleted if fact_id not in newer.rejected]
        if chosen := [fact_id for fact_id in left if (fact_id in newer.abstaining) is abstain]:
            delete_facts(session, chosen, actor, f"deleted {_LATER}", abstain=abstain)


def repeat_limits(session: Session, newer: NewerLog, actor: str) -> Iterator[LaterLimit]:
    """Limit answers to accepted facts where the newer log did; yield the limits that were not in force here."""
    for later in newer.limits:
        if session.scalar(select(_limit_missing_condition(later))):
            reason = f"limited by change {later.seq} of the log that went on after this backup"
            limit_to_accepted(session, later.corpus, later.keyset, actor, reason, accepted_only=True)
            yield later


def live_facts(session: Session, fact_ids: Iterable[int]) -> list[int]:
    """Give those of these facts that are live in the restored base."""
    return _facts(session, fact_ids, FactRow.deleted_seq.is_(None))


def _limit_missing_condition(later: LaterLimit) -> Any:
    """Give an SQL condition: the corpus or keyset of a limit is in this base, and not limited."""
    if later.keyset is not None:
        return exists().where(KeysetRow.id == later.keyset, ~KeysetRow.accepted_only)
    limited = exists().where(CorpusReviewRow.corpus == later.corpus, CorpusReviewRow.accepted_only)
    return exists().where(DocumentRow.corpus == later.corpus) & ~limited


def _facts(session: Session, fact_ids: Iterable[int], where: Any) -> list[int]:
    """Give those of these facts that the restored base has and that meet the SQL condition `where`."""
    statement = select(FactRow.id).where(FactRow.id == func.any(list(fact_ids)), where).order_by(FactRow.id)
    return list(session.scalars(statement))


DELETING = ("delete", "forget", "reject")


@dataclass(frozen=True, slots=True)
class LaterErasure:
    """A change of the newer log that erased facts, some of which the backup may not have.

    `mentions` says where else it redacted the values (None: an older program, which did not log that, wrote the log).
    Of `documents` it erased the whole text, and at `places` it blanked the name of a person.
    """

    seq: int
    at: str
    fact_ids: tuple[int, ...]
    mentions: Mentioned | None = None
    documents: tuple[int, ...] = ()
    places: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class LaterLimit:
    """A change of the newer log by which only accepted facts answer: of a corpus, or in a keyset."""

    seq: int
    corpus: str | None = None
    keyset: int | None = None


@dataclass(frozen=True, slots=True)
class NewerLog:
    """The erasures, deletions and limits to accepted facts that a log has after a backup, up to its `head`.

    `deleted` facts are deleted and not erased at the end of the log; for those in `abstaining` lookups abstain, those
    in `rejected` were rejected. `limits` are those corpora and keysets of which only accepted facts answer at its end.
    `sealed` are breaks of the log that were acknowledged: these changes are ignored. `releases` are the entries that
    released holds, `holds` those that placed a hold still in force, `rules` the last retention rule of each corpus.
    """

    file: str
    head: Head
    erasures: tuple[LaterErasure, ...] = ()
    deleted: frozenset[int] = frozenset()
    abstaining: frozenset[int] = frozenset()
    rejected: frozenset[int] = frozenset()
    limits: tuple[LaterLimit, ...] = ()
    sealed: tuple[int, ...] = ()
    releases: tuple[Mapping[str, Any], ...] = ()
    holds: tuple[Mapping[str, Any], ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()


def read_newer_log(file: Path, backup: Backup, keys: Collection[str] = ()) -> NewerLog:
    """Read the log of the base that went on after `backup`, or its head alone where that is the backup's last change.

    Raises `SignatureRefused` where none of `keys` (fingerprints; by default the backup's own) signed it, and
    `LogRefused` unless it is complete and continues from the last change of the backup.
    """
    what = file.name
    with file.open(encoding="utf-8") as lines:
        head, entries = read_log(lines, what)
        signing.require_signer(head.key, keys or (backup.key,), what)
        if head.database != backup.database:
            raise LogRefused(what, 0, f"it is of base {head.database}. Name the log of {backup.database}")
        if head.seq < backup.seq:
            raise LogRefused(what, head.seq, f"it ends before the backup, which goes to change {backup.seq}")
        if (head.seq, head.hash) == (backup.seq, backup.hash) and _is_head_alone(file):
            return NewerLog(what, head)
        return _newer_entries(entries, head, backup, what)


def _is_head_alone(file: Path) -> bool:
    with file.open(encoding="utf-8") as lines:
        lines.readline()
        return not lines.readline()


def _newer_entries(entries: Iterable[LogEntry], head: Head, backup: Backup, what: str) -> NewerLog:
    erasures: list[LaterErasure] = []
    deleted: dict[int, LogEntry] = {}
    limits: dict[tuple[Any, Any], LaterLimit] = {}
    sealed: list[int] = []
    releases: dict[int, Mapping[str, Any]] = {}
    holds: dict[int, Mapping[str, Any]] = {}
    rules: dict[str, Mapping[str, Any]] = {}
    after, blanked = list(entries), set[tuple[int, str]]()
    for (
        found
    ) in after:  # entries in which an erasure blanked a name: their seal has the hash that they have by now
        if found.fits and found.said["kind"] == SEAL and BLANKING in found.said["payload"]:
            blanked |= {(one["seq"], one["expected_hash"]) for one in found.said["payload"]["breaks"]}
    for found in after:
        entry = found.said
        seq, kind, fact_ids = entry["seq"], entry["kind"], entry["fact_ids"]
        if seq == backup.seq and found.hash != backup.hash:
            raise LogRefused(what, seq, "the backup ends with another change. Name the log of its base")
        if seq <= backup.seq:
            continue
        fits = found.fits or (seq, entry_hash(entry)) in blanked
        if not fits:  # a change that breaks the chain is no evidence that anything was erased
            sealed.append(seq)
            continue
        if kind == "erase":
            mentions = as_mentioned(entry["payload"].get("mentions"))
            whole = tuple(entry["payload"].get("whole_documents", ()))
            places = tuple(entry["payload"].get("places", ()))
            erasures.append(LaterErasure(seq, entry["at"], tuple(fact_ids), mentions, whole, places))
        elif kind in DELETING:
            deleted.update(dict.fromkeys(fact_ids, found))
        elif kind == "restore":
            for fact_id in fact_ids:
                deleted.pop(fact_id, None)
        elif kind == PLACED:
            holds[entry["payload"]["hold"]] = entry
        elif kind == RELEASED:
            releases[entry["payload"]["hold"]] = entry
            holds.pop(entry["payload"]["hold"], None)
        elif kind == RULED:
            rules[entry["payload"]["corpus"]] = entry
        elif kind == KIND:
            _note_limit(limits, seq, entry["payload"])
    gone = {fact_id for erasure in erasures for fact_id in erasure.fact_ids}
    return NewerLog(
        what,
        head,
        tuple(erasures),
        frozenset(deleted) - gone,
        frozenset(fact_id for fact_id, by in deleted.items() if by.said["payload"].get("abstain")) - gone,
        frozenset(fact_id for fact_id, by in deleted.items() if by.said["kind"] == "reject") - gone,
        tuple(limits.values()),
        tuple(sealed),
        tuple(releases.values()),
        tuple(holds.values()),
        tuple(rules.values()),
    )


def _note_limit(limits: dict[tuple[Any, Any], LaterLimit], seq: int, said: Mapping[str, Any]) -> None:
    """Add to `limits`, by (corpus, keyset), the one that change `seq` set, or remove the one that it lifted."""
    corpus, keyset = said.get("corpus"), said.get("keyset")
    limits.pop((corpus, keyset), None)
    if said.get("accepted_only"):
        limits[corpus, keyset] = LaterLimit(seq, corpus, keyset)
