"""fsck: compares sets, not counts, and says what differs. It repairs nothing.

Everything is read in one REPEATABLE READ transaction, so edits beside it are no differences.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sqlalchemy import and_, func, select, text
from sqlalchemy.orm import Session

from kb import audit, keysets
from kb.facts import IS_LIVE
from kb.records import FsckReport
from kb.replica import active_keyset_id, open_replica
from kb.tables import Document, Fact, FactVersion

# Each gives ids where something is wrong. What the database's constraints rule out is not asked again.
_PROBLEMS = {
    "documents whose text does not have the stored sha256": """
        SELECT id FROM document WHERE encode(sha256(convert_to(text, 'UTF8')), 'hex') <> sha256 ORDER BY id""",
    "facts that are deleted and have a live value, or neither": """
        SELECT f.id FROM fact f LEFT JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
        WHERE (f.deleted_seq IS NULL) <> (v.fact_id IS NOT NULL) ORDER BY f.id""",
    "facts with a value from a change that is not in the log": """
        SELECT DISTINCT v.fact_id FROM fact_version v
        LEFT JOIN change a ON a.seq = v.from_seq LEFT JOIN change z ON z.seq = v.to_seq
        WHERE a.seq IS NULL OR (v.to_seq IS NOT NULL AND z.seq IS NULL) ORDER BY v.fact_id""",
}


def fsck(session: Session, index_directory: Path) -> FsckReport:
    """Check keys against index, facts against texts, and the log against its chain.

    The index is opened afresh from its snapshot and caught up, which is what the next process would do. Facts
    without a key are work for rekey, not damage: they are counted and leave `ok` as it is.
    """
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    live_facts = session.scalar(select(func.count()).select_from(FactVersion).where(IS_LIVE)) or 0
    live_ids, index_ids, unkeyed = _ids(session, index_directory, live_facts)
    missing = np.setdiff1d(live_ids, index_ids)
    left_over = np.setdiff1d(index_ids, live_ids)
    non_verbatim = _non_verbatim(session)
    checked, first_break = audit.verify_chain(session)
    problems = _problems(session)
    return FsckReport(
        ok=not (missing.size or left_over.size or non_verbatim or first_break is not None or problems),
        live_facts=live_facts,
        live_keys=len(live_ids),
        index_ids=len(index_ids),
        keys_missing_from_index=tuple(missing.tolist()),
        index_ids_without_live_key=tuple(left_over.tolist()),
        unkeyed_facts=unkeyed,
        non_verbatim_facts=non_verbatim,
        changes_checked=checked,
        chain_ok=first_break is None,
        chain_first_break=first_break,
        problems=problems,
    )


def _ids(session: Session, index_directory: Path, live_facts: int) -> tuple[keysets.Ids, keysets.Ids, int]:
    """The active keyset's live key ids, its index's ids, and how many facts have no key; all empty without one."""
    keyset_id = active_keyset_id(session)
    if keyset_id is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), live_facts
    keyset = keysets.get_keyset(session, keyset_id)
    batches = [ids for ids, _ in keysets.indexed_keys(session, keyset_id, keyset.dim)]
    live_ids = np.concatenate([np.empty(0, np.int64), *batches])
    return live_ids, open_replica(session, keyset, index_directory).index.ids, keyset.num_unkeyed


def _non_verbatim(session: Session) -> tuple[int, ...]:
    """Facts whose first value is not what their document says at their span."""
    said = func.substr(Document.text, Fact.span_start + 1, Fact.span_end - Fact.span_start)
    statement = (
        select(Fact.id)
        .join(Document, Document.id == Fact.document_id)
        .join(FactVersion, and_(FactVersion.fact_id == Fact.id, FactVersion.version == 1))
        .where(said != FactVersion.value)
        .order_by(Fact.id)
    )
    return tuple(session.scalars(statement))


def _problems(session: Session) -> tuple[str, ...]:
    found = {name: list(session.scalars(text(statement))) for name, statement in _PROBLEMS.items()}
    return tuple(f"{len(ids)} {name}: {ids[:10]}" for name, ids in found.items() if ids)
