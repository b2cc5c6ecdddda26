"""Stated: which proposed facts a person's file states again, and so accepts. Session first.

What the file itself says is proposed, as an export does, stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.facts.reading import IS_LIVE_VERSION, IS_PROPOSED
from colmlm.kb.store.database import IncomingDocument
from colmlm.kb.tables import FactRow, FactVersionRow


def keep_stated(taken: Iterable[IncomingDocument]) -> list[int]:
    """Give the facts that newer texts of documents keep since the file marks them."""
    return [
        fact_id
        for row in taken
        for ordinal, fact_id in row.kept.items()
        if row.document.facts[ordinal].review != "proposed"
    ]


def is_stated_unchanged(session: Session, documents: Mapping[int, IncomingDocument]) -> list[int]:
    """Give the proposed facts of documents, by their ids, that the same record states and nobody has edited."""
    said: dict[tuple[int | None, ...], tuple[str, str | None]] = {
        (document_id, span.start, span.end): (span.value, span.question)
        for document_id, row in documents.items()
        for span in row.document.facts
        if span.review != "proposed" and not span.deleted
    }
    place = (FactRow.document_id, FactRow.span_start, FactRow.span_end)
    rows = session.execute(
        select(FactRow.id, *place, FactVersionRow.value, FactRow.question)
        .join(FactVersionRow, IS_LIVE_VERSION)
        .where(FactRow.document_id == func.any(list(documents)), IS_PROPOSED)
        .order_by(FactRow.id)
    )
    return [fact_id for fact_id, *at, value, question in rows if said.get(tuple(at)) == (value, question)]
