"""Upkeep: the verbs that check, repair and count what a store holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable, LockHeld, count_of
from colmlm.kb.facts import sentences
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.facts.sentences import AstraySentences
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.keysets import active_keyset_id
from colmlm.kb.log import audit
from colmlm.kb.log.chain import verify_chain
from colmlm.kb.lookup import shared, snapshots
from colmlm.kb.lookup.device import may_choose_device
from colmlm.kb.lookup.remote import attach_collection, collection_of_keyset
from colmlm.kb.lookup.replica import rebuild_replica, save_replica, snapshots_of
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.lookup.shared import await_turns, forget_snapshots, prune_snapshots
from colmlm.kb.lookup.snapshot_files import sizes_of
from colmlm.kb.lookup.snapshots import (
    CollectionStandings,
    Inspection,
    SharedFaults,
    Snapshot,
    compare_snapshots,
    inspect_snapshots,
    remove_orphans,
)
from colmlm.kb.removal import quotations
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.purge import restore_recycling
from colmlm.kb.removal.quotations import ErasedFacts
from colmlm.kb.removal.sealing import describe_key_file, refresh_key_file
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import (
    IS_SAID,
    ChangeRow,
    DocumentRow,
    FactRow,
    FactVersionRow,
    ForgetRunRow,
    GenerationRow,
    KeysetRow,
)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The checks and repairs of a store."""

    store: SearchableStore

    def fsck(self) -> FsckReport:
        """Compare facts, sentences, keys, index, texts and log with one another. Changes nothing."""
        with self.store.sessions() as session:
            return check_consistency(session, self.store.settings)

    def repair(self, *, dry_run: bool = False) -> RepairReport:
        """Check everything, rebuild what is derived from texts and keys, and check again. A dry run mends nothing."""
        return Repair(self.store).run(dry_run=dry_run)

    def snapshot(self) -> SnapshotStanding | None:
        """Compare the active keyset's snapshot with the database by numbers of keys, unopened: `fsck` compares sets.

        None if no snapshot can be read. Raises `NoActiveKeyset`, and where the keys are on Milvus `CandidatesRefused`
        and `CandidatesUnavailable`.
        """
        with self.store.sessions() as session:
            keyset = keysets.active_head(session)
            head = audit.head_seq(session)
            if (there := collection_of_keyset(session, keyset, self.store.settings.milvus)) is not None:
                applied_seq = attach_collection(session, there).applied_seq
                held, size = there.count(strong=True), 0
            elif (
                found := sizes_of(
                    snapshots_of(session, self.store.settings.index_directory), keyset.keyset_id
                )
            ) is not None:
                held, size, applied_seq = found
            else:
                return None
            touched = (
                select(ChangeRow.seq)
                .where(ChangeRow.seq > applied_seq, ChangeRow.kind.not_in(audit.NO_KEYS))
                .limit(1)
            )
            is_behind = session.scalar(touched) is not None
            wanted = None if is_behind else activation.num_indexed_keys(session, keyset.keyset_id)
            return SnapshotStanding(held, size, applied_seq, head, wanted)

    def shared_snapshot(self) -> SharedStanding | None:
        """Describe the active keyset's snapshot in the place that servers share, unread; None if none is needed there.

        Raises `SharedSnapshotsUnavailable`.
        """
        with self.store.sessions() as session:
            if (folder := shared.folder_of(session, self.store.settings)) is None:
                return None
            doubts = tuple(shared.snapshot_doubts(session, folder).values())
            there = shared.noted_snapshots(session).get(keysets.active_keyset_id(session) or 0)
            if there is None and not doubts and self._is_read_at_start(session):
                return None
            if doubts or there is None:
                return SharedStanding(folder.where, None, doubts)
            return SharedStanding(folder.where, audit.head_seq(session) - there.applied_seq)

    def is_read_at_start(self) -> bool:
        """Tell whether torch may search the active keyset on a device. Then processes read it as they start."""
        with self.store.sessions() as session:
            return self._is_read_at_start(session)

    def _is_read_at_start(self, session: Session) -> bool:
        if keysets.active_keyset_id(session) is None:
            return False
        return may_choose_device(session, keysets.active_head(session), self.store.settings)

    def statistics(self) -> Statistics:
        """Count what a base holds, in one statement for each table, which reads the whole table."""
        with self.store.reports() as session:
            live, current = FactRow.deleted_seq.is_(None), DocumentRow.replaced_seq.is_(None)
            counted: tuple[Any, ...] = (
                func.count().filter(live).label("facts"),
                func.count().filter(live, FactRow.document_id.is_(None)).label("facts_without_document"),
                func.count()
                .filter(FactRow.deleted_seq.is_not(None), FactRow.erased_seq.is_(None))
                .label("deleted"),
                func.count(FactRow.erased_seq).label("erased"),
                func.count().filter(live, FactRow.review == "proposed").label("to_review"),
            )
            session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            of_facts = session.execute(select(*counted).select_from(FactRow)).one()
            documents = select(func.count().filter(current), func.count(func.distinct(DocumentRow.corpus)))
            num_documents, num_corpora = session.execute(documents.select_from(DocumentRow)).one()
            return Statistics(
                head_seq=audit.head_seq(session),
                corpora=num_corpora,
                documents=num_documents,
                generations=session.scalar(select(func.count()).select_from(GenerationRow)) or 0,
                keysets=session.scalar(select(func.count()).where(KeysetRow.state != "retired")) or 0,
                active_keyset_id=session.scalar(select(KeysetRow.id).where(KeysetRow.state == "active")),
                forget_runs=session.scalar(select(func.count()).select_from(ForgetRunRow)) or 0,
                **of_facts._mapping,
            )


# Compares the snapshot on disk, and the one that servers share, with the database, by counts.


@dataclass(frozen=True, slots=True)
class SnapshotStanding:
    """A snapshot of `num_keys` keys as of change `applied_seq`, where the log ends with `head_seq`.

    For a keyset on Milvus it describes the collection, and `num_bytes` is 0. `num_wanted` is how many keys it should
    hold; None where later changes touched keys, so that it is unknown.
    """

    num_keys: int
    num_bytes: int
    applied_seq: int
    head_seq: int
    num_wanted: int | None


@dataclass(frozen=True, slots=True)
class SharedStanding:
    """The active keyset's shared snapshot at `where`, which is `behind` the log by so many changes (None: not there).

    `doubts` say which snapshots that the database names may lie elsewhere, or in a place that is not mounted.
    """

    where: str
    behind: int | None
    doubts: tuple[str, ...] = ()


# Statistics: counts everything in a knowledge base.


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts as of change `head_seq`. `documents` are the current ones, and `facts` the live ones.

    `facts_without_document` counts the live facts that no document says. `deleted` facts can be restored, `erased` not,
    and `to_review` are the live ones that are proposed.
    """

    head_seq: int
    corpora: int
    documents: int
    facts: int
    facts_without_document: int
    deleted: int
    erased: int
    generations: int
    keysets: int
    active_keyset_id: int | None
    forget_runs: int
    to_review: int


# fsck: compares all that is stored as sets, not by counts, and says what differs. Repair mends
# it.
#
# Everything is read in one REPEATABLE READ transaction, so that edits meanwhile do not appear as differences.

# Each statement gives the ids where something is wrong. What the database's constraints rule out is not checked again.
_PROBLEMS = {
    "documents whose text does not have the stored sha256": """
        SELECT id FROM document WHERE encode(sha256(convert_to(text, 'UTF8')), 'hex') <> sha256 ORDER BY id""",
    "facts that are deleted and have a live value, or neither": """
        SELECT f.id FROM fact f LEFT JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
        WHERE (f.deleted_seq IS NULL) <> (v.fact_id IS NOT NULL) ORDER BY f.id""",
    "facts that are rejected and have a live value": """
        SELECT id FROM fact WHERE review = 'rejected' AND review_seq IS NOT NULL AND deleted_seq IS NULL ORDER BY id""",
    "facts with a value from a change that is not in the log": """
        SELECT DISTINCT v.fact_id FROM fact_version v
        LEFT JOIN change a ON a.seq = v.from_seq LEFT JOIN change z ON z.seq = v.to_seq
        WHERE a.seq IS NULL OR (v.to_seq IS NOT NULL AND z.seq IS NULL) ORDER BY v.fact_id""",
    "outputs that do not say the values which they name": """
        SELECT DISTINCT g.id FROM attribution a JOIN generation g ON g.id = a.generation_id
        JOIN fact_version v ON v.fact_id = a.fact_id AND v.version = a.fact_version
        CROSS JOIN LATERAL (SELECT
            substr(g.output, a.output_start + 1, a.output_end - a.output_start) AS output,
            substr(v.value, coalesce(a.part_start, 0) + 1, coalesce(a.part_end, 10000000) - coalesce(a.part_start, 0))
                AS value
        ) AS said
        WHERE said.output <> said.value AND position(U&'\\2588' IN said.output || v.value) = 0 ORDER BY g.id""",
}

# Changes that give values and end them have digests of these. An entry that does not fit the log proves nothing.
_DIGESTS = text("""
SELECT f.id, given.digest, v.value FROM change c
CROSS JOIN LATERAL (VALUES ('values', true), ('was', false)) AS kept (name, opened)
CROSS JOIN LATERAL jsonb_each_text(
    CASE jsonb_typeof(c.payload -> kept.name) WHEN 'object' THEN c.payload -> kept.name ELSE '{}' END
) AS given (fact, digest)
JOIN fact f ON f.id = CASE WHEN given.fact ~ '^[0-9]{1,18}$' THEN given.fact::bigint END AND f.erased_seq IS NULL
LEFT JOIN fact_version v ON v.fact_id = f.id AND c.seq = CASE WHEN kept.opened THEN v.from_seq ELSE v.to_seq END
WHERE c.seq <> ALL(:broken) AND c.kind <> ALL(:no_edits) ORDER BY f.id
""")


def check_consistency(session: Session, settings: Settings) -> FsckReport:
    """Check keys against index, facts and sentences against texts, and the log against its chain.

    The index is opened from its snapshot and caught up, as the next process would do, and so is that of every other
    keyset that has a snapshot. Outputs, plans and jobs are searched for what was erased. Facts without a key lack only
    a fill and are no damage: they are counted and do not affect `ok`.
    """
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    live_facts = session.scalar(select(func.count()).select_from(FactVersionRow).where(IS_LIVE)) or 0
    snapshots = inspect_snapshots(session, settings)
    active, num_keys, unkeyed = _active_index(session, settings, snapshots, live_facts)
    non_verbatim = _non_verbatim(session)
    chained = verify_chain(session)
    quoting = quotations.find_quotations(session, ErasedFacts.read(session)).describe_findings()
    astray = sentences.find_astray_sentences(session).describe_findings()
    altered = _altered_values(session, [found.seq for found in (*chained.breaks, *chained.sealed)])
    problems = (*_problem_lines(session), *altered, *astray, *snapshots.differences(but=active.keyset_id))
    return FsckReport(
        ok=active.is_good and not chained.breaks and not (non_verbatim or problems or quoting),
        live_facts=live_facts,
        live_keys=num_keys,
        index_ids=active.num_ids,
        keys_missing_from_index=active.missing,
        index_ids_without_live_key=active.left_over,
        unkeyed_facts=unkeyed,
        non_verbatim_facts=non_verbatim,
        changes_checked=chained.checked,
        chain_ok=not chained.breaks,
        chain_first_break=chained.first_break,
        chain_breaks=tuple(found.seq for found in chained.breaks),
        chain_sealed=tuple(found.seq for found in chained.sealed),
        problems=problems,
        mendable=snapshots.mendable(),
        quoting=quoting,
    )


def _active_index(
    session: Session, settings: Settings, found: Inspection, live_facts: int
) -> tuple[Snapshot, int, int]:
    """Give the active keyset's index as the next process opens it, its number of keys, and of facts without a key.

    Where no keyset is active, the index is empty and all live facts are without a key.
    """
    keyset_id = active_keyset_id(session)
    if keyset_id is None:
        return Snapshot(0), 0, live_facts
    keyset = activation.count_keys(session, keyset_id)
    good = next(
        (s for s in found.snapshots if s.keyset_id == keyset_id and (s.refused is None or s.is_elsewhere)),
        None,
    )
    active = good or compare_snapshots(session, rebuild_replica(session, keyset, settings))
    return active, activation.num_indexed_keys(session, keyset_id), keyset.num_unkeyed


def _non_verbatim(session: Session) -> tuple[int, ...]:
    """Find facts whose value as their document says it (`IS_SAID`) is not the document's text at their span."""
    said = func.substr(DocumentRow.text, FactRow.span_start + 1, FactRow.span_end - FactRow.span_start)
    statement = (
        select(FactRow.id)
        .join(DocumentRow, DocumentRow.id == FactRow.document_id)
        .join(FactVersionRow, IS_SAID)
        .where(said != FactVersionRow.value)
        .order_by(FactRow.id)
    )
    return tuple(session.scalars(statement))


def _problem_lines(session: Session) -> tuple[str, ...]:
    found = {name: list(session.scalars(text(statement))) for name, statement in _PROBLEMS.items()}
    return tuple(f"{len(ids)} {name}: {ids[:10]}" for name, ids in found.items() if ids)


def _altered_values(session: Session, broken: Sequence[int]) -> tuple[str, ...]:
    """Give a line on facts with a value that the log's digest does not fit; empty if none. Skip `broken` entries."""
    digest = audit.keyed_digests(session)
    rows = session.execute(
        _DIGESTS.execution_options(yield_per=10_000),
        {"broken": list(broken), "no_edits": list(audit.MAINTENANCE)},
    )
    kept = ((row.id, row.digest, row.value) for row in rows if MARK not in (row.value or ""))
    ids = sorted({fact for fact, said, value in kept if value is None or digest(value) != said})
    return (
        (f"{count_of(len(ids), 'fact')} with a value that is not the one in the log: {ids[:10]}",)
        if ids
        else ()
    )


# Repair: rebuilds what is derived from the database, and only reports damage to the data itself.
#
# Indexes and snapshots are caches of keys, and sentences follow from texts, so they can be thrown away.
# Texts, facts and the log are evidence: a program that "repaired" them would forge it. But what still says an
# erased fact is redacted, which completes the erasure.

_TOLD_AGAIN = CandidatesRefused, CandidatesUnavailable, LockHeld  # by the check afterwards
_ERASE = "Run this once more; something stores what was erased."
_AGAIN = "No answer depends on it. Run this once more where the server or place that it names answers."
_RESTORE = "Restore a backup from before the damage: colmlm backup restore --change-log"


@dataclass(frozen=True, slots=True)
class RemainingProblem:
    """A problem that a repair cannot mend, and what the operator can do about it."""

    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RepairReport:
    """Record what was mended (with `dry_run`: would be), the problems that are left, and the check afterwards."""

    dry_run: bool
    mended: tuple[str, ...]
    left: tuple[RemainingProblem, ...]
    after: FsckReport


@dataclass(frozen=True, slots=True)
class Repair:
    """Mends a knowledge base's indexes and snapshots, while edits go on."""

    kb: SearchableStore

    def run(self, *, dry_run: bool = False) -> RepairReport:
        """Check everything, rebuild what is derived from the database, and check again. A dry run mends nothing."""
        with self.kb.sessions() as session:
            found = inspect_snapshots(session, self.kb.settings)
            quoting = quotations.find_quotations(session, ErasedFacts.read(session)).describe_findings()
            astray = sentences.find_astray_sentences(session)
        file, doubt = describe_key_file(self.kb)
        stale = () if doubt is None else (f"the file of sealing keys {file}: {doubt}",)
        to_mend = (*found.differences(), *found.mendable(), *quoting, *astray.describe_findings(), *stale)
        if not dry_run:
            restore_recycling(self.kb.engine)
            if quoting:
                Erasure(self.kb).complete(
                    actor=self.kb.settings.actor, reason="repair: said after it was erased"
                )
            refresh_key_file(self.kb)
            if astray:
                self._write_sentences(astray)
            with self.kb.sessions() as session:
                remove_orphans(session, self.kb.settings.index_directory)
            self._finish_keysets(found.unfinished)
            self._rewrite([s.keyset_id for s in found.snapshots if not s.is_good])
            self._share(found.shared)
            self._clear(found.collections)
        with self.kb.sessions() as session:
            after = check_consistency(session, self.kb.settings)
        still = found.unreached_findings() if dry_run else (*after.mendable, *after.problems, *after.quoting)
        mended = tuple(said for said in to_mend if said not in still)
        return RepairReport(dry_run, mended, _problems_left(after, mended), after)

    def _write_sentences(self, astray: AstraySentences) -> None:
        with self.kb.sessions.begin() as session:
            audit.lock_log(session)  # no text changes meanwhile
            sentences.mend_sentences(session, astray)

    def _finish_keysets(self, keyset_ids: Sequence[int]) -> None:
        """Mark these keysets ready, as they have all keys. An index on Milvus is filled first; no lookup would."""
        for keyset_id in keyset_ids:
            with suppress(*_TOLD_AGAIN):
                self.kb.searcher.prepare(keyset_id)
                with self.kb.sessions.begin() as session:
                    activation.finish_building(session, keyset_id, self.kb.settings.actor)

    def _rewrite(self, keyset_ids: Sequence[int]) -> None:
        """Write new snapshots of these keysets from the database alone; each replaces the damaged file."""
        for keyset_id in keyset_ids:
            with self.kb.sessions.begin() as session:
                is_active = active_keyset_id(session) == keyset_id
                if not is_active:
                    replica = rebuild_replica(
                        session, keysets.keyset_head(session, keyset_id), self.kb.settings
                    )
                    save_replica(session, replica, self.kb.settings)
            if is_active:
                self.kb.lookups.rebuild()  # this process's index too

    def _share(self, faults: SharedFaults) -> None:
        """Replace bad shared snapshots by good ones, and remove files that belong to none.

        The database forgets snapshots that are gone or in another folder; the report of the repair names them.
        """
        with self.kb.sessions.begin() as session:
            folder = shared.folder_of(session, self.kb.settings)
            if folder is None or not faults.describe_findings() or faults.unreached:
                return
            await_turns(session)
            forget_snapshots(session, shared.snapshot_doubts(session, folder))
            in_use = {k.keyset_id for k in keysets.heads_in_use(session)}
        for keyset_id in sorted(in_use & faults.by_keyset.keys()):
            self.kb.searcher.prepare(keyset_id, share=True)
        with self.kb.sessions.begin() as session:
            prune_snapshots(session, folder)

    def _clear(self, found: CollectionStandings) -> None:
        """Drop collections that answer nothing by then, and forget those that were filled on a former server.

        One that cannot be dropped or forgotten is reported by the check afterwards.
        """
        with self.kb.sessions() as session:
            named = snapshots.named_collections(session, self.kb.settings)
        for one in named:
            with suppress(*_TOLD_AGAIN), self.kb.sessions.begin() as session:
                if one.keyset_id in found.astray:
                    one.forget(session)
                elif one.keyset_id in found.useless:
                    one.drop(session)


def _problems_left(after: FsckReport, mended: Collection[str]) -> tuple[RemainingProblem, ...]:
    """List the problems that a repair cannot mend. In a dry run, `mended` is what it would mend."""
    left = []
    if after.non_verbatim_facts:
        ids = ", ".join(map(str, after.non_verbatim_facts[:10]))
        remedy = "Compare with `colmlm trace fact`; correct the value or ingest the document again."
        left.append(
            RemainingProblem(
                f"{count_of(len(after.non_verbatim_facts), 'fact')}, not said by the document: {ids}", remedy
            )
        )
    if after.chain_first_break is not None:
        remedy = "Find out who had access, compare with a witnessed head (colmlm log verify --against). "
        remedy += "What is known to be no edit of the base's can be acknowledged (colmlm log seal). "
        left.append(
            RemainingProblem(
                f"the chain of the log breaks at change {after.chain_first_break}", remedy + _RESTORE
            )
        )
    left += [RemainingProblem(problem, _ERASE) for problem in after.quoting if problem not in mended]
    left += [RemainingProblem(problem, _RESTORE) for problem in after.problems if problem not in mended]
    left += [RemainingProblem(problem, _AGAIN) for problem in after.mendable if problem not in mended]
    return tuple(left)


# Records of checks.


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The differences that `fsck` found. It is `ok` only where nothing is missing, left over or broken.

    `chain_breaks` are breaks of the log; `chain_sealed` are those that were acknowledged, and do not affect `chain_ok`
    and `ok`.

    `mendable` is what a repair clears up although no answer depends on it: snapshots that were refused, files left
    over, keysets that have all keys and were not marked ready. `quoting` describes rows that still say an erased fact.
    """

    ok: bool
    live_facts: int
    live_keys: int
    index_ids: int
    keys_missing_from_index: tuple[int, ...]
    index_ids_without_live_key: tuple[int, ...]
    unkeyed_facts: int
    non_verbatim_facts: tuple[int, ...]
    changes_checked: int
    chain_ok: bool
    chain_first_break: int | None
    chain_breaks: tuple[int, ...] = field(default=())
    chain_sealed: tuple[int, ...] = field(default=())
    problems: tuple[str, ...] = field(default=())
    mendable: tuple[str, ...] = field(default=())
    quoting: tuple[str, ...] = field(default=())
