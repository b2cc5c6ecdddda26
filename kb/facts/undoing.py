"""Undoing: takes the edits of one change back, where nothing has changed its facts since. Session first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import NotUndoable
from colmlm.kb.facts import edits, holding, mending, pairs, removal, reviewed
from colmlm.kb.facts.mending import FactState
from colmlm.kb.facts.placing import place
from colmlm.kb.facts.records import Edit
from colmlm.kb.log import audit
from colmlm.kb.tables import ChangeRow, FactPastRow, FactRow, FactVersionRow

DELETING = ("delete", "reject")
UNDONE = ("insert", "update", "move", "restore", holding.KIND, *DELETING, *audit.VERDICTS)
INSTEAD = {
    "forget": "a forget run is undone by `colmlm forget restore`",
    "ingest": "ingest the former file again",
    "erase": "an erasure is for good",
    "activate": "`colmlm keysets rollback` lets the former keyset answer",
    "dismiss-misses": "`colmlm misses reopen` opens its groups again",
    "solve-misses": "`colmlm misses reopen` opens its group again",
}

_ABSTAINED = text("""
SELECT count(*) FROM fact_version v
JOIN fact_version restored ON restored.fact_id = v.fact_id AND restored.version = v.version + 1
JOIN change c ON c.seq = v.to_seq AND c.payload @> '{"abstain": true}'
WHERE v.fact_id = ANY(:ids) AND restored.from_seq = :seq
""")


def undo(session: Session, seq: int, actor: str, reason: str) -> Edit:
    """Takes back change `seq`: an edit, a verdict, or that both of two facts hold.

    Raises `NoSuchChange` or `NotUndoable`.
    """
    audit.require_change(session, seq)
    change = session.scalars(select(ChangeRow).where(ChangeRow.seq == seq)).one_or_none()
    if change is None or change.kind not in UNDONE:
        kind = change.kind if change else "nothing"
        raise NotUndoable(seq, f"its kind is {kind}; {INSTEAD.get(kind, 'only edits of facts are undone')}")
    pending = audit.begin(session, actor, reason)
    if change.kind == holding.KIND:
        return holding.undo(session, pending, change)
    ids = edits.storable_ids(change.fact_ids)
    versions = edits.last_versions(session, ids)
    edits.refuse_erased(session, ids)
    by = _last_changes(session, change, versions)
    if since := [fact_id for fact_id, last in by if last != seq]:
        raise NotUndoable(seq, "something else was done since to fact", since)
    said: dict[str, Any] = {"undoes": seq}
    if change.kind in DELETING:
        if gone := removal.removed_by(session, seq):
            removal.make_current(session, gone)
        return edits.reopen(session, pending, versions, said)
    said |= reviewed.undo_reviews(session, change.payload, pending.seq)
    if change.kind in audit.VERDICTS:
        kind = "propose" if change.kind == "accept" else "accept"
        return edits.done(session, pending, kind, ids, said)
    if change.kind in ("insert", "restore"):
        abstain = _had_abstained(session, seq, ids)
        ended = edits.end_facts(session, ids, pending.seq)
        return edits.log_end(session, pending, "delete", ended, abstain=abstain, payload=said)
    now = mending.live_states(session, ids)
    new = [_former(session, change, one) for one in now.values()]
    done = mending.amend(session, pending, change.kind, now, new, said)
    return replace(done, also_said_by=pairs.keep(session, ids, anyway=True))


def _last_changes(
    session: Session, change: ChangeRow, versions: Sequence[Row[Any]]
) -> list[tuple[int, int | None]]:
    """Gives each fact with the change that last did to it what `change` did; None where that cannot be undone."""
    if change.kind in DELETING:
        return [(v.fact_id, v.to_seq) for v in versions]
    if change.kind not in audit.VERDICTS:
        return [(v.fact_id, v.from_seq if v.to_seq is None else None) for v in versions]
    ids = [v.fact_id for v in versions if v.to_seq is None and v.from_seq < change.seq]
    judged = select(FactRow.id, FactRow.review_seq).where(FactRow.id == func.any(ids))
    last = {row.id: row.review_seq for row in session.execute(judged)}
    return [(v.fact_id, last.get(v.fact_id)) for v in versions]


def _had_abstained(session: Session, seq: int, fact_ids: Sequence[int]) -> bool:
    """Says whether the facts that change `seq` restored were deleted to abstain. A change deletes all of them alike."""
    number = session.scalar(_ABSTAINED, {"seq": seq, "ids": list(fact_ids)}) or 0
    if 0 < number < len(fact_ids):
        raise NotUndoable(
            seq,
            "of the facts it restored some had been deleted to abstain and some not; delete each as it was",
        )
    return number > 0


def _former(session: Session, change: ChangeRow, now: FactState) -> FactState:
    """Gives the state before the change: the value, and what else it changed: question, answer and place."""
    key = (now.fact_id, now.version - 1)
    former = replace(now, value=session.get_one(FactVersionRow, key).value)
    if (past := session.get(FactPastRow, key)) is None:
        return former
    if change.kind == "update":
        return replace(former, question=past.question, answer=past.answer)
    if past.document_id is None or past.document_id != now.document_id:
        raise NotUndoable(change.seq, "a newer text replaced the document of fact", [now.fact_id])
    place(session, past.document_id, {"start": past.span_start, "end": past.span_end}, but=now.fact_id)
    return replace(
        former, question=past.question, answer=past.answer, span_start=past.span_start, span_end=past.span_end,
        said_version=past.said_version,
    )  # fmt: skip
