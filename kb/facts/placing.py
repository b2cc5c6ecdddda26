"""Placing: finds the stretch of a document that a person names for a fact. Session first; nothing here writes.

What is refused is what an ingest would refuse: a span that is empty, outside the text or blank, that does not say what
it is said to, or that overlaps another fact's. A deleted fact keeps its place, since it may be restored.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import DocumentNotFound, DocumentReplaced, FactSuppressed, InvalidSpan, SpanTaken
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.records import Marking
from colmlm.kb.facts.redaction import MARK, touches
from colmlm.kb.facts.suppression import SpanPlace, Suppressor, text_before
from colmlm.kb.log import audit
from colmlm.kb.tables import DocumentRow, FactRow
from colmlm.kb.texts.wording import Span

LISTED = 10  # offsets of a text that is there more than once


@dataclass(frozen=True, slots=True)
class Placed:
    """A free stretch of a current document, with what the text says there, and how an erasure knows the place."""

    document_id: int
    start: int
    end: int
    value: str
    known_as: SpanPlace

    def require_not_erased(self, suppressor: Suppressor, question: str | None) -> None:
        """Raises `FactSuppressed` where a fact of this place was erased, unless the suppressor allows that."""
        if suppressor.matches([self.value], question, self.known_as) and not suppressor.allow_erased:
            raise FactSuppressed


def place(session: Session, document_id: int, marking: Marking, *, but: int | None = None) -> Placed:
    """Finds the stretch, which may overlap the fact `but`. The log must be locked.

    Raises `DocumentNotFound`, `DocumentReplaced`, `InvalidSpan` or `SpanTaken`.
    """
    found = session.get(DocumentRow, document_id) if 0 < document_id <= MAX_ID else None
    if found is None:
        raise DocumentNotFound(document_id)
    if found.replaced_seq is not None:
        raise DocumentReplaced(document_id)
    start, end = _span(found, marking)
    value = found.text[start:end]
    audit.check_text("value", value, blank=False)
    if MARK in value:
        raise InvalidSpan(document_id, f"[{start}, {end}) takes in words that were erased")
    others = _spans(session, document_id, but)
    if taken := [fact_id for fact_id, span in others.items() if touches((start, end), [span])]:
        raise SpanTaken(document_id, taken)
    before = text_before(found.text, others.values(), start)
    return Placed(document_id, start, end, value, SpanPlace(found.external_id, start, before, found.corpus))


def _spans(session: Session, document_id: int, but: int | None) -> dict[int, Span]:
    statement = select(FactRow.id, FactRow.span_start, FactRow.span_end).where(
        FactRow.document_id == document_id
    )
    rows = session.execute(statement.order_by(FactRow.span_start, FactRow.id))
    return {row.id: (row.span_start, row.span_end) for row in rows if row.id != but}


def _span(document: DocumentRow, marking: Marking) -> Span:
    start, end, said = marking.get("start"), marking.get("end"), marking.get("text")
    if (start is None) != (end is None) or (start is None and not said):
        raise InvalidSpan(document.id, "give the offsets of its start and its end, or its exact text")
    if start is None or end is None:
        return _only(document, said or "")
    if not 0 <= start < end <= len(document.text):
        cause = f"[{start}, {end}) is empty or outside the text of {len(document.text)} characters"
        raise InvalidSpan(document.id, cause)
    if said and document.text[start:end] != said:
        raise InvalidSpan(document.id, f"[{start}, {end}) says other words than the text that was given")
    return start, end


def _only(document: DocumentRow, said: str) -> Span:
    """Gives the one place where the document says this."""
    at = document.text.find(said)
    starts: list[int] = []
    while at >= 0 and len(starts) <= LISTED:
        starts.append(at)
        at = document.text.find(said, at + 1)
    if not starts:
        raise InvalidSpan(
            document.id, "the document does not say that text; it must be exact, also in blanks"
        )
    if len(starts) > 1:
        listed = ", ".join(map(str, starts[:LISTED])) + (" and more" if len(starts) > LISTED else "")
        raise InvalidSpan(document.id, f"that text begins at {listed}; give the start and the end as well")
    return starts[0], starts[0] + len(said)
