"""Versions: give facts other values and questions, move spans, mark new facts, and undo changes.

Each edit opens a version, and accepts a fact that was proposed. Its former question and place stay in `fact_past`, and
in the log as digests and offsets. Keys that no longer fit are dropped with the change, in which every index finds them;
the next fill makes new ones. A value alone leaves all keys as they are, since none depends on it. The note that two
contradicting facts are both right ends when one gets another value or question. Functions take the session first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, and_, delete, func, insert, or_, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, NotFound, refusals
from colmlm.kb.facts import edits, pairs, sentences
from colmlm.kb.facts.edits import accept_edited, append_edit, place_fact, storable_ids, undo_reviews
from colmlm.kb.facts.records import Edit, FactEdit, Marking
from colmlm.kb.facts.suppression import Suppressor
from colmlm.kb.log import audit
from colmlm.kb.tables import ADOPTED, ChangeRow, DocumentRow, FactKeyRow, FactPastRow, FactRow, FactVersionRow


@dataclass(frozen=True, slots=True)
class FactState:
    """The state of a live fact at its last version: value, question, answer, and place in a document."""

    fact_id: int
    version: int
    value: str
    question: str | None
    answer: str | None
    document_id: int | None
    span_start: int | None
    span_end: int | None
    said_version: int

    @property
    def stored_columns(self) -> dict[str, Any]:
        """The columns of the table of facts that store this state, with their values."""
        names = ("question", "answer", "document_id", "span_start", "span_end", "said_version")
        return {name: getattr(self, name) for name in names}

    @property
    def place(self) -> tuple[int | None, ...]:
        return self.document_id, self.span_start, self.span_end


def edit_facts(
    session: Session, fact_edits: Sequence[FactEdit], actor: str, reason: str, *, anyway: bool = False
) -> Edit:
    """Give live facts other values, questions or both, all or none.

    Another value drops the annotator's answer, which paraphrases the value before.

    Raises `AnsweredAlready` where an edit makes a contradiction, unless `anyway`.
    """
    for one in fact_edits:
        if one.value is None and one.question is None:
            raise InvalidValue(
                "edit", f"fact {one.fact_id} has neither a value nor a question. Give one of them"
            )
        for name in ("value", "question"):
            if (said := getattr(one, name)) is not None:
                audit.check_text(name, said, blank=False)
    if len({one.fact_id for one in fact_edits}) < len(fact_edits):
        raise InvalidValue("batch", "it names a fact twice. Name each fact once")
    pending = audit.begin_change(session, actor, reason)
    now = live_states(session, [one.fact_id for one in fact_edits])
    _require_unchanged(now, {one.fact_id: one.version for one in fact_edits})
    given: dict[int, dict[str, Any]] = {
        one.fact_id: {n: said for n in ("value", "question") if (said := getattr(one, n)) is not None}
        for one in fact_edits
    }
    for fact_id, before in now.items():
        if given[fact_id].get("value", before.value) != before.value:
            given[fact_id]["answer"] = None
    new = [replace(before, **given[fact_id]) for fact_id, before in now.items()]
    done = write_new_states(session, pending, "update", now, new, accept_edited(session, now, pending.seq))
    return replace(done, also_said_by=pairs.keep_pairs(session, done.fact_ids, anyway=anyway))


def move_fact(
    session: Session,
    fact_id: int,
    to: Marking,
    actor: str,
    reason: str,
    *,
    allow_erased: bool = False,
    question: str | None = None,
    version: int | None = None,
    anyway: bool = False,
) -> Edit:
    """Move the span of a live fact within its document; the text of the new span becomes its value.

    The annotator's answer goes, since it paraphrases the value before. A `question` takes the place of the fact's.
    """
    if question is not None:
        audit.check_text("question", question, blank=False)
    suppressor = Suppressor(session, allow_erased=allow_erased)
    pending = audit.begin_change(session, actor, reason)
    now = live_states(session, [fact_id])
    _require_unchanged(now, {fact_id: version})
    before = now[fact_id]
    if before.document_id is None:
        raise InvalidValue("span", f"fact {fact_id} has no document. Use `colmlm facts edit --value`")
    placed = place_fact(session, before.document_id, to, but=fact_id)
    question = before.question if question is None else question
    placed.require_not_erased(suppressor, question, f"fact {fact_id} was not moved there")
    after = replace(
        before, value=placed.value, question=question, answer=None, span_start=placed.start, span_end=placed.end,
        said_version=before.version + 1,
    )  # fmt: skip
    if (after.place, after.value) == (before.place, before.value):
        raise refusals.invalid_span(before.document_id, f"fact {fact_id} stands there already")
    payload = _lift_suppression(session, suppressor) | accept_edited(session, now, pending.seq)
    done = write_new_states(session, pending, "move", now, [after], payload)
    return replace(done, also_said_by=pairs.keep_pairs(session, [fact_id], anyway=anyway))


def mark_fact(
    session: Session,
    document_id: int,
    span: Marking,
    actor: str,
    reason: str,
    *,
    question: str | None = None,
    answer: str | None = None,
    allow_erased: bool = False,
    anyway: bool = False,
) -> Edit:
    """Add a fact to a current document; the text of the span becomes its value.

    Raises `AnsweredAlready` where it contradicts another fact, unless `anyway`.
    """
    for name, said in (("question", question), ("answer", answer)):
        if said is not None:
            audit.check_text(name, said, blank=False)
    suppressor = Suppressor(session, allow_erased=allow_erased)
    pending = audit.begin_change(session, actor, reason)
    placed = place_fact(session, document_id, span)
    placed.require_not_erased(suppressor, question, "none was added there")
    last = select(func.coalesce(func.max(FactRow.ordinal) + 1, 0)).where(FactRow.document_id == document_id)
    fact = FactRow(
        document_id=document_id, ordinal=session.scalar(last), span_start=placed.start, span_end=placed.end,
        question=question, answer=answer, created_seq=pending.seq,
    )  # fmt: skip
    session.add(fact)
    session.flush()
    edits.open_versions(session, [(fact.id, 1, placed.value)], pending.seq)
    payload = {
        "values": {str(fact.id): pending.digest(placed.value)},
        "places": {str(fact.id): [document_id, placed.start, placed.end]},
    }
    done = edits.append_edit(
        session, pending, "insert", [fact.id], payload | _lift_suppression(session, suppressor)
    )
    return replace(done, keyed=False, also_said_by=pairs.keep_pairs(session, [fact.id], anyway=anyway))


def _lift_suppression(session: Session, suppressor: Suppressor) -> dict[str, Any]:
    came_back = suppressor.lift(session)
    return {"allowed_erased": came_back} if came_back else {}


def live_states(session: Session, fact_ids: Iterable[int]) -> dict[int, FactState]:
    """Read the states of live facts, by id. Raises `FactNotFound`, `FactErased` or `FactDeleted` with all ids."""
    versions = edits.last_versions(session, fact_ids)
    ids = [v.fact_id for v in versions]
    edits.refuse_erased(session, ids)
    if dead := [v.fact_id for v in versions if v.to_seq is not None]:
        raise refusals.fact_deleted(dead)
    columns = (
        FactRow.id, FactRow.question, FactRow.answer, FactRow.document_id, FactRow.span_start, FactRow.span_end,
        FactRow.said_version,
    )  # fmt: skip
    kept = {row.id: row[1:] for row in session.execute(select(*columns).where(FactRow.id == func.any(ids)))}
    return {v.fact_id: FactState(v.fact_id, v.version, v.value, *kept[v.fact_id]) for v in versions}


def _require_unchanged(now: Mapping[int, FactState], seen: Mapping[int, int | None]) -> None:
    """Raise `FactChanged` if a fact's version differs from the one in `seen`; None there fits any version."""
    if changed := [f for f, one in now.items() if seen[f] not in (None, one.version)]:
        raise refusals.fact_changed(changed)


def write_new_states(
    session: Session,
    pending: audit.Pending,
    kind: str,
    now: Mapping[int, FactState],
    new: Sequence[FactState],
    payload: Mapping[str, Any] | None = None,
) -> Edit:
    """Store new states of these facts in one change, and drop the keys that no longer fit."""
    ids = [one.fact_id for one in new]
    edits.close_versions(session, ids, pending.seq)
    edits.open_versions(session, [(n.fact_id, now[n.fact_id].version + 1, n.value) for n in new], pending.seq)
    mended = [one for one in new if one.stored_columns != now[one.fact_id].stored_columns]
    if mended:
        past = [now[one.fact_id] for one in mended]
        session.execute(
            insert(FactPastRow),
            [{"fact_id": p.fact_id, "version": p.version, **p.stored_columns} for p in past],
        )
        session.execute(update(FactRow), [{"id": one.fact_id, **one.stored_columns} for one in mended])
    asked = [one for one in mended if one.question != now[one.fact_id].question]
    moved = [one for one in mended if one.place != now[one.fact_id].place]
    said: dict[str, Any] = {
        **(payload or {}),
        "was": {str(f): pending.digest(now[f].value) for f in ids},
        "values": {str(one.fact_id): pending.digest(one.value) for one in new},
    }
    if asked:
        said["questions"] = {str(n.fact_id): pending.digest(n.question) for n in asked if n.question}
    if moved:
        said["places"] = {str(one.fact_id): list(one.place) for one in moved}
    if mended:
        said["dropped_keys"] = _drop_keys(session, asked, moved)
    sentences.write_fact_sentences(session, ids)
    done = edits.append_edit(session, pending, kind, ids, said)
    return replace(done, keyed=not (asked or moved))


def _drop_keys(session: Session, asked: Sequence[FactState], moved: Sequence[FactState]) -> list[int]:
    """Delete, in all keysets, context keys of `moved` facts and all but aliases of `asked` ones (with a new question).

    An encoder may read the question in the place of the context. An adopted key was made from the context alone, by its
    publisher, and goes only with a move.
    """
    stale = or_(
        and_(
            FactKeyRow.fact_id == func.any([one.fact_id for one in asked]),
            FactKeyRow.kind.not_in(("alias", ADOPTED)),
        ),
        and_(
            FactKeyRow.fact_id == func.any([one.fact_id for one in moved]),
            FactKeyRow.kind.in_(("context", ADOPTED)),
        ),
    )
    return sorted(session.scalars(delete(FactKeyRow).where(stale).returning(FactKeyRow.id)))


NOTES = ("both-right", "hold")  # kinds of changes; the log of earlier releases has the second

_NOTE = text("""
UPDATE fact_pair SET held_seq = :seq WHERE id = (
    SELECT id FROM standing_pair
    WHERE fact_id = :one AND other_id = :other AND NOT same_value AND (held_seq IS NULL) = :holds
      AND greatest(given_seq, other_given_seq) < :before
) RETURNING id
""")


def note_both_right(session: Session, pair: Sequence[int], actor: str, reason: str, *, holds: bool) -> Edit:
    """Note that two contradicting facts are both right; without `holds`, remove that note.

    Raises `PairNotFound`, also if the pair is in that state already.
    """
    return _set_note(session, audit.begin_change(session, actor, reason), pair, {"holds": holds})


def undo_note(session: Session, pending: audit.Pending, change: ChangeRow) -> Edit:
    """Undo a change that set or removed a both-right note. Raises `NotUndoable` if a later one noted the pair."""
    pair = change.fact_ids
    noted = select(func.max(ChangeRow.seq)).where(ChangeRow.kind.in_(NOTES))
    since = "a later change concerns one of facts"
    if session.scalar(noted.where(ChangeRow.fact_ids.contains(pair))) != change.seq:
        raise refusals.not_undoable(change.seq, since, pair)
    payload = {"holds": not change.payload["holds"], "undoes": change.seq}
    try:
        return _set_note(session, pending, pair, payload)
    except NotFound as error:
        raise refusals.not_undoable(change.seq, since, pair) from error


def _set_note(session: Session, pending: audit.Pending, pair: Sequence[int], payload: dict[str, Any]) -> Edit:
    one, other = sorted(pair)
    holds = payload["holds"]
    given = {
        "one": one,
        "other": other,
        "seq": pending.seq if holds else None,
        "holds": holds,
        "before": payload.get("undoes", pending.seq),  # values that were given since were never judged
    }
    if len(storable_ids((one, other))) < 2 or session.scalar(_NOTE, given) is None:
        raise refusals.pair_not_found((one, other))
    return append_edit(session, pending, NOTES[0], (one, other), payload)


# Undoing: takes the edits of one change back, where nothing has changed its facts since. Session first.

DELETING = ("delete", "reject")
UNDONE = ("insert", "update", "move", "restore", *NOTES, *DELETING, *audit.VERDICTS)
INSTEAD = {
    "forget": "Undo the forget run with `colmlm forget undo`",
    "ingest": "Add the former file again with `colmlm corpus add`",
    "erase": "An erasure cannot be undone",
    "activate": "Return to the former keyset with `colmlm keysets rollback`",
    "dismiss-misses": "Reopen its groups with `colmlm misses settle reopen`",
    "solve-misses": "Reopen its group with `colmlm misses settle reopen`",
}

_ABSTAINED = text("""
SELECT count(*) FROM fact_version v
JOIN fact_version restored ON restored.fact_id = v.fact_id AND restored.version = v.version + 1
JOIN change c ON c.seq = v.to_seq AND c.payload @> '{"abstain": true}'
WHERE v.fact_id = ANY(:ids) AND restored.from_seq = :seq
""")


def undo_change(session: Session, seq: int, actor: str, reason: str) -> Edit:
    """Undo change `seq`: an edit, a verdict, or a note that two facts are both right.

    Raises `NoSuchChange` or `NotUndoable`.
    """
    audit.require_change(session, seq)
    change = session.scalars(select(ChangeRow).where(ChangeRow.seq == seq)).one_or_none()
    if change is None or change.kind not in UNDONE:
        kind = change.kind if change else "nothing"
        raise refusals.not_undoable(
            seq, f"it is of kind {kind}. {INSTEAD.get(kind, 'Only edits of facts can be undone')}"
        )
    pending = audit.begin_change(session, actor, reason)
    if change.kind in NOTES:
        return undo_note(session, pending, change)
    ids = storable_ids(change.fact_ids)
    versions = edits.last_versions(session, ids)
    edits.refuse_erased(session, ids)
    by = _last_changes(session, change, versions)
    if since := [fact_id for fact_id, last in by if last != seq]:
        raise refusals.not_undoable(seq, "a later change concerns fact", since)
    said: dict[str, Any] = {"undoes": seq}
    if change.kind in DELETING:
        if gone := documents_removed_by(session, seq):
            make_current(session, gone)
        return edits.reopen_facts(session, pending, versions, said)
    said |= undo_reviews(session, change.payload, pending.seq)
    if change.kind in audit.VERDICTS:
        kind = "propose" if change.kind == "accept" else "accept"
        return edits.append_edit(session, pending, kind, ids, said)
    if change.kind in ("insert", "restore"):
        abstain = _had_abstained(session, seq, ids)
        ended = edits.end_facts(session, ids, pending.seq)
        return edits.log_end(session, pending, "delete", ended, abstain=abstain, payload=said)
    now = live_states(session, ids)
    new = [_state_before(session, change, one) for one in now.values()]
    done = write_new_states(session, pending, change.kind, now, new, said)
    return replace(done, also_said_by=pairs.keep_pairs(session, ids, anyway=True))


def _last_changes(
    session: Session, change: ChangeRow, versions: Sequence[Row[Any]]
) -> list[tuple[int, int | None]]:
    """Give each fact with the last change that did what `change` did: delete, judge or edit. None bars the undo."""
    if change.kind in DELETING:
        return [(v.fact_id, v.to_seq) for v in versions]
    if change.kind not in audit.VERDICTS:
        return [(v.fact_id, v.from_seq if v.to_seq is None else None) for v in versions]
    ids = [v.fact_id for v in versions if v.to_seq is None and v.from_seq < change.seq]
    judged = select(FactRow.id, FactRow.review_seq).where(FactRow.id == func.any(ids))
    last = {row.id: row.review_seq for row in session.execute(judged)}
    return [(v.fact_id, last.get(v.fact_id)) for v in versions]


def _had_abstained(session: Session, seq: int, fact_ids: Sequence[int]) -> bool:
    """Say whether the facts that `seq` restored were deleted with `abstain`. Raises `NotUndoable` if only some were."""
    number = session.scalar(_ABSTAINED, {"seq": seq, "ids": list(fact_ids)}) or 0
    if 0 < number < len(fact_ids):
        raise refusals.not_undoable(
            seq,
            "some of its facts were deleted to abstain and some were not. Delete each as it was before",
        )
    return number > 0


def _state_before(session: Session, change: ChangeRow, now: FactState) -> FactState:
    """Give a fact's state before the change: its former value, and the question, answer and place that it changed."""
    key = (now.fact_id, now.version - 1)
    former = replace(now, value=session.get_one(FactVersionRow, key).value)
    if (past := session.get(FactPastRow, key)) is None:
        return former
    if change.kind == "update":
        return replace(former, question=past.question, answer=past.answer)
    if past.document_id is None or past.document_id != now.document_id:
        since = "a newer text replaced its document. Use `colmlm facts edit` on fact"
        raise refusals.not_undoable(change.seq, since, [now.fact_id])
    place_fact(session, past.document_id, {"start": past.span_start, "end": past.span_end}, but=now.fact_id)
    return replace(
        former, question=past.question, answer=past.answer, span_start=past.span_start, span_end=past.span_end,
        said_version=past.said_version,
    )  # fmt: skip


def documents_removed_by(session: Session, seq: int) -> Sequence[int]:
    """Give the ids of the documents that this change, one that deleted facts, took out of use."""
    return session.scalars(select(DocumentRow.id).where(DocumentRow.replaced_seq == seq)).all()


def make_current(session: Session, document_ids: Sequence[int]) -> None:
    """Make these documents current again, so that their sentences are found."""
    again = update(DocumentRow).where(DocumentRow.id == func.any(list(document_ids)))
    session.execute(again.values(replaced_seq=None))
    sentences.write_document_sentences(session, document_ids)
