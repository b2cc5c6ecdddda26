"""Undoing: takes the edits of one change back, where nothing has changed its facts since. Session first."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import NotUndoable
from colmlm.kb.facts import edits, mending
from colmlm.kb.facts.mending import FactState
from colmlm.kb.facts.placing import place
from colmlm.kb.facts.records import Edit
from colmlm.kb.log import audit
from colmlm.kb.tables import ChangeRow, FactPastRow, FactVersionRow

UNDONE = ("insert", "update", "move", "delete", "restore")
INSTEAD = {
    "forget": "a forget run is undone by `colmlm forget restore`",
    "ingest": "ingest the former file again",
    "erase": "an erasure is for good",
    "activate": "`colmlm keysets rollback` lets the former keyset answer",
}


def undo(session: Session, seq: int, actor: str, reason: str) -> Edit:
    """Takes back change `seq`: an insert, update, move, delete or restore. Raises `NoSuchChange` or `NotUndoable`."""
    audit.require_change(session, seq)
    change = session.scalars(select(ChangeRow).where(ChangeRow.seq == seq)).one_or_none()
    if change is None or change.kind not in UNDONE:
        kind = change.kind if change else "nothing"
        raise NotUndoable(seq, f"its kind is {kind}; {INSTEAD.get(kind, 'only edits of facts are undone')}")
    pending = audit.begin(session, actor, reason)
    ids = edits.storable_ids(change.fact_ids)
    versions = edits.last_versions(session, ids)
    edits.refuse_erased(session, ids)
    by = [
        (v.fact_id, v.to_seq if change.kind == "delete" else v.to_seq is None and v.from_seq)
        for v in versions
    ]
    if since := [fact_id for fact_id, last in by if last != seq]:
        raise NotUndoable(seq, "something else was done since to fact", since)
    said = {"undoes": seq}
    if change.kind == "delete":
        return edits.reopen(session, pending, versions, said)
    if change.kind in ("insert", "restore"):
        ended = edits.end_facts(session, ids, pending.seq)
        return edits.log_end(session, pending, "delete", ended, abstain=False, payload=said)
    now = mending.live_states(session, ids)
    new = [_former(session, change, one) for one in now.values()]
    return mending.amend(session, pending, change.kind, now, new, said)


def _former(session: Session, change: ChangeRow, now: FactState) -> FactState:
    """Gives the state before the change: the value, and what else it changed: the question, or the place and answer."""
    key = (now.fact_id, now.version - 1)
    former = replace(now, value=session.get_one(FactVersionRow, key).value)
    if (past := session.get(FactPastRow, key)) is None:
        return former
    if change.kind == "update":
        return replace(former, question=past.question)
    if past.document_id is None or past.document_id != now.document_id:
        raise NotUndoable(change.seq, "a newer text replaced the document of fact", [now.fact_id])
    place(session, past.document_id, {"start": past.span_start, "end": past.span_end}, but=now.fact_id)
    return replace(
        former, answer=past.answer, span_start=past.span_start, span_end=past.span_end, said_version=past.said_version
    )  # fmt: skip
