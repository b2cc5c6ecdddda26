"""fsck: compares all that is stored as sets, not by counts, and says what differs. `kb.upkeep.repair` repairs it.

Everything is read in one REPEATABLE READ transaction, so that edits meanwhile do not appear as differences.
"""

from __future__ import annotations

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.facts import quotations, sentences
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.facts.gone import Gone
from colmlm.kb.keys import counting
from colmlm.kb.keys.keysets import active_keyset_id
from colmlm.kb.log.chain import verify_chain
from colmlm.kb.lookup.replica import rebuild
from colmlm.kb.lookup.snapshots import Inspection, Snapshot, compare, inspect
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import IS_SAID, DocumentRow, FactRow, FactVersionRow
from colmlm.kb.upkeep.records import FsckReport

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
}


def fsck(session: Session, settings: Settings) -> FsckReport:
    """Checks keys against index, facts and sentences against texts, and the log against its chain.

    The index is opened from its snapshot and caught up, as the next process would do, and so is that of
    every other keyset that has a snapshot. Outputs, plans and jobs are searched for what was erased. Facts
    without a key need a rekey and are no damage: they are counted and do not affect `ok`.
    """
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    live_facts = session.scalar(select(func.count()).select_from(FactVersionRow).where(IS_LIVE)) or 0
    snapshots = inspect(session, settings)
    active, num_keys, unkeyed = _active(session, settings, snapshots, live_facts)
    non_verbatim = _non_verbatim(session)
    chained = verify_chain(session)
    quoting = quotations.find(session, Gone.read(session)).told()
    astray = sentences.find_astray(session).told()
    problems = (*_problems(session), *astray, *snapshots.differences(but=active.keyset_id))
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


def _active(
    session: Session, settings: Settings, found: Inspection, live_facts: int
) -> tuple[Snapshot, int, int]:
    """Gives the active keyset's index as the next process opens it, its number of keys, and of facts without a key.

    Where no keyset is active, the index is empty and all live facts are without a key.
    """
    keyset_id = active_keyset_id(session)
    if keyset_id is None:
        return Snapshot(0), 0, live_facts
    keyset = counting.counted(session, keyset_id)
    good = next(
        (s for s in found.snapshots if s.keyset_id == keyset_id and (s.refused is None or s.is_elsewhere)),
        None,
    )
    active = good or compare(session, rebuild(session, keyset, settings))
    return active, counting.num_indexed_keys(session, keyset_id), keyset.num_unkeyed


def _non_verbatim(session: Session) -> tuple[int, ...]:
    """Finds facts whose value that the document should say is not the text of their document at their span."""
    said = func.substr(DocumentRow.text, FactRow.span_start + 1, FactRow.span_end - FactRow.span_start)
    statement = (
        select(FactRow.id)
        .join(DocumentRow, DocumentRow.id == FactRow.document_id)
        .join(FactVersionRow, IS_SAID)
        .where(said != FactVersionRow.value)
        .order_by(FactRow.id)
    )
    return tuple(session.scalars(statement))


def _problems(session: Session) -> tuple[str, ...]:
    found = {name: list(session.scalars(text(statement))) for name, statement in _PROBLEMS.items()}
    return tuple(f"{len(ids)} {name}: {ids[:10]}" for name, ids in found.items() if ids)
