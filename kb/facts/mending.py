"""Mending: gives facts other values and questions, moves their spans, and marks new ones in documents. Session first.

Each of these opens a version, and accepts a fact that was proposed. What the fact asked and where it stood before stays
in `fact_past`, and in the log as digests and offsets. Keys that no longer fit are dropped with the change, in which
every index finds them; the next rekey makes new ones. A value alone leaves all keys as they are, since none depends on
it. That two facts which contradict each other are both right ends when one of them gets another value or question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import and_, delete, func, insert, or_, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, NotFound, refusals
from colmlm.kb.facts import edits, pairs, sentences
from colmlm.kb.facts.edits import accept_edited, append_edit, place_fact, storable_ids
from colmlm.kb.facts.records import Correction, Edit, Marking
from colmlm.kb.facts.suppression import Suppressor
from colmlm.kb.log import audit
from colmlm.kb.tables import ADOPTED, ChangeRow, FactKeyRow, FactPastRow, FactRow


@dataclass(frozen=True, slots=True)
class FactState:
    """Record what a live fact says, what it asks and where it stands, as of its version."""

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
        """The columns of the table of facts with this state."""
        names = ("question", "answer", "document_id", "span_start", "span_end", "said_version")
        return {name: getattr(self, name) for name in names}

    @property
    def place(self) -> tuple[int | None, ...]:
        return self.document_id, self.span_start, self.span_end


def correct_fact(
    session: Session, corrections: Sequence[Correction], actor: str, reason: str, *, anyway: bool = False
) -> Edit:
    """Give live facts other values, questions or both, all or none.

    Another value drops the annotator's answer, which says the value before in other words.

    Raises `AnsweredAlready` where that makes a contradiction, unless `anyway`.
    """
    for one in corrections:
        if one.value is None and one.question is None:
            raise InvalidValue(
                "edit", f"fact {one.fact_id} has neither a value nor a question. Give one of them"
            )
        for name in ("value", "question"):
            if (said := getattr(one, name)) is not None:
                audit.check_text(name, said, blank=False)
    if len({one.fact_id for one in corrections}) < len(corrections):
        raise InvalidValue("batch", "it names a fact twice. Name each fact once")
    pending = audit.begin_change(session, actor, reason)
    now = live_states(session, [one.fact_id for one in corrections])
    _require_unchanged(now, {one.fact_id: one.version for one in corrections})
    given: dict[int, dict[str, Any]] = {
        one.fact_id: {n: said for n in ("value", "question") if (said := getattr(one, n)) is not None}
        for one in corrections
    }
    for fact_id, before in now.items():
        if given[fact_id].get("value", before.value) != before.value:
            given[fact_id]["answer"] = None
    new = [replace(before, **given[fact_id]) for fact_id, before in now.items()]
    done = amend_fact(session, pending, "update", now, new, accept_edited(session, now, pending.seq))
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
    """Move the span of a live fact within its document, whose words there become its value.

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
        raise InvalidValue("span", f"fact {fact_id} has no document. Edit its value")
    placed = place_fact(session, before.document_id, to, but=fact_id)
    question = before.question if question is None else question
    placed.require_not_erased(suppressor, question)
    after = replace(
        before, value=placed.value, question=question, answer=None, span_start=placed.start, span_end=placed.end,
        said_version=before.version + 1,
    )  # fmt: skip
    if (after.place, after.value) == (before.place, before.value):
        raise refusals.invalid_span(before.document_id, f"fact {fact_id} stands there already")
    payload = _lift_suppression(session, suppressor) | accept_edited(session, now, pending.seq)
    done = amend_fact(session, pending, "move", now, [after], payload)
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
    """Add a fact to a current document, whose words at the span are its value.

    Raises `AnsweredAlready` where it contradicts another fact, unless `anyway`.
    """
    for name, said in (("question", question), ("answer", answer)):
        if said is not None:
            audit.check_text(name, said, blank=False)
    suppressor = Suppressor(session, allow_erased=allow_erased)
    pending = audit.begin_change(session, actor, reason)
    placed = place_fact(session, document_id, span)
    placed.require_not_erased(suppressor, question)
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
    """Read these facts. Raises `FactNotFound`, `FactErased` or `FactDeleted`, each with every id."""
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
    """Raise `FactChanged` where a fact has not the version any more that somebody saw."""
    if changed := [f for f, one in now.items() if seen[f] not in (None, one.version)]:
        raise refusals.fact_changed(changed)


def amend_fact(
    session: Session,
    pending: audit.Pending,
    kind: str,
    now: Mapping[int, FactState],
    new: Sequence[FactState],
    payload: Mapping[str, Any] | None = None,
) -> Edit:
    """Give these facts new states in one change, and drop the keys that no longer fit."""
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
    """Drop the keys of these facts, in every keyset: of moved ones those of the context, as it is another.

    Of facts that ask something else all but aliases go: an encoder may read the question in the place of the context.
    An adopted key was made of the context alone, by whoever published it.
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
    """Note that two facts that contradict are both right; without `holds`, that they are not.

    Raises `PairNotFound`, also where the same was noted before.
    """
    return _set_note(session, audit.begin_change(session, actor, reason), pair, {"holds": holds})


def undo_note(session: Session, pending: audit.Pending, change: ChangeRow) -> Edit:
    """Take back the note that two facts are both right. Raises `NotUndoable` where a later one was made of the pair."""
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
