"""Conditions (SQL) on facts: what they are of, their state, the changes that made them, and what is past in a text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Unpack

from sqlalchemy import ColumnElement, Select, and_, case, exists, false, func, or_, select, true
from sqlalchemy.orm import aliased

from colmlm.kb.facts.records import FactFilters, State
from colmlm.kb.facts.reviews import Review
from colmlm.kb.log.audit import MAINTENANCE
from colmlm.kb.tables import ChangeRow, DocumentRow, FactRow, FactVersionRow, SentenceRow

Ranked = Select[*tuple[Any, ...]]  # ids of facts, and their rank
_CONDITION = ColumnElement[bool]
_ENDED = select(FactVersionRow.fact_id).where(FactVersionRow.to_seq.is_not(None))


def conditions(*, reading: bool = False, **filters: Unpack[FactFilters]) -> Iterator[_CONDITION]:
    """Gives the conditions on `FactRow` of these filters; where facts are `reading` one by one, without joins."""
    yield from _state(filters.get("state", "live"))
    if (review := filters.get("review")) is not None:
        yield FactRow.review == review
    if (corpus := filters.get("corpus")) is not None:
        within = FactRow.document_id.in_(select(DocumentRow.id).where(DocumentRow.corpus == corpus))
        yield _apart(within) if reading else within
    if (document_id := filters.get("document_id")) is not None:
        yield FactRow.document_id == document_id
    if (edits := _edits(**filters)) is not None:
        added = FactRow.created_seq.in_(select(ChangeRow.seq).where(edits))
        yield _apart(or_(added, FactRow.id.in_(select(func.unnest(ChangeRow.fact_ids)).where(edits))))


def chosen(ranked: Ranked, **filters: Unpack[FactFilters]) -> list[Ranked]:
    """Gives statements that choose the facts by an index of what is filtered by; none where no filter has one."""
    if (edits := _edits(**filters)) is not None:
        edited = select(func.unnest(ChangeRow.fact_ids).label("id")).where(edits).subquery("edited")
        return [  # an ingest does not list the facts that it added
            ranked.join(ChangeRow, ChangeRow.seq == FactRow.created_seq).where(edits),
            ranked.join(edited, edited.c.id == FactRow.id),
        ]
    if (review := _settled(**filters)) is not None:
        return [ranked.where(FactRow.review == review, FactRow.review_seq.is_not(None))]
    if (corpus := filters.get("corpus")) is not None:
        of_corpus = select(DocumentRow.id).where(DocumentRow.corpus == corpus).scalar_subquery()
        return [ranked.where(FactRow.document_id == func.any(func.array(of_corpus)))]
    return []


def left_by(**filters: Unpack[FactFilters]) -> FactFilters:
    """Gives the filters that what `chosen` gives leaves to be heeded."""
    if _edits(**filters) is None:
        return {**filters, "corpus": None} if _settled(**filters) is None else {**filters, "review": None}
    return {**filters, "actor": None, "kind": None, "since": None, "until": None}


def _settled(review: Review | None = None, **others: Any) -> Review | None:
    """Gives the review that is filtered by, where an index finds it: most facts are accepted."""
    return None if review == "accepted" else review


def _apart(condition: _CONDITION) -> _CONDITION:
    """Makes the server read what is compared with once, and not join it to each fact."""
    return case((condition, true()), else_=false())


def _state(state: State) -> Iterator[_CONDITION]:
    if state == "live":
        yield FactRow.deleted_seq.is_(None)
    elif state != "all":
        yield FactRow.id.in_(_ENDED)  # has an index, and few facts beside those that are sought
        yield FactRow.erased_seq.is_not(None) if state == "erased" else FactRow.deleted_seq.is_not(None)


def _edits(
    actor: str | None = None,
    kind: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    **others: Any,
) -> _CONDITION | None:
    """Gives a condition on `ChangeRow`: that it is one of these edits; None where no filter speaks of changes."""
    given = [
        *([] if actor is None else [ChangeRow.actor == actor]),
        *([] if kind is None else [ChangeRow.kind == kind]),
        *([] if since is None else [ChangeRow.at >= since]),
        *([] if until is None else [ChangeRow.at <= until]),
    ]
    return and_(ChangeRow.kind.not_in(MAINTENANCE), *given) if given else None


# The sentence of its document that a fact begins in.
STANDS_IN = and_(
    SentenceRow.document_id == FactRow.document_id,
    FactRow.span_start >= SentenceRow.span_start,
    FactRow.span_start < SentenceRow.span_end,
)


def says_the_past() -> _CONDITION:
    """Gives whether a sentence of a document has a span of a fact that was deleted or corrected, and so may say it."""
    other = aliased(FactRow)
    return exists().where(
        other.document_id == SentenceRow.document_id,
        other.span_start < SentenceRow.span_end,
        other.span_end > SentenceRow.span_start,
        FactVersionRow.fact_id == other.id,
        FactVersionRow.to_seq.is_not(None),
    )
