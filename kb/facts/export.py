"""Export: writes a corpus as annotated documents, from which an ingest restores the same state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session, aliased

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.facts.reading import DOCUMENT_COLUMNS
from colmlm.kb.tables import Document, Fact, FactVersion

_ABOUT = DOCUMENT_COLUMNS[1:]


def export(session: Session, corpus: str, *, live_only: bool) -> Iterator[AnnotatedDocument]:
    """Gives the corpus's current documents in the order they came, each with its facts, corrections and deletions.

    With `live_only`, which training wants, each has only the live facts that the text still says. Erased facts are in
    no export, since the text does not say them any more.
    """
    facts = select(_spans()).select_from(Fact).join(_SAID, (_SAID.fact_id == Fact.id) & (_SAID.version == 1))
    facts = facts.join(_LAST, (_LAST.fact_id == Fact.id) & (_LAST.version == _last_version()))
    facts = facts.where(Fact.document_id == Document.id, Fact.erased_seq.is_(None))
    if live_only:
        facts = facts.where(_LAST.to_seq.is_(None), _LAST.value == _SAID.value)
    statement = (
        select(Document.text, facts.correlate(Document).scalar_subquery().label("facts"), *_ABOUT)
        .where(Document.corpus == corpus, Document.replaced_seq.is_(None))
        .order_by(Document.id)
        .execution_options(yield_per=200)
    )
    with closing(session.execute(statement)) as rows:  # closed also where a reader stops in the middle
        yield from map(_document, rows)


_SAID = aliased(FactVersion)  # the value that the text had at ingest
_LAST = aliased(FactVersion)


def _last_version() -> Any:
    newest = select(func.max(FactVersion.version)).where(FactVersion.fact_id == Fact.id)
    return newest.correlate(Fact).scalar_subquery()


def _spans() -> Any:
    return func.jsonb_agg(
        func.jsonb_build_array(
            Fact.span_start,
            Fact.span_end,
            _SAID.value,
            Fact.question,
            Fact.answer,
            func.nullif(_LAST.value, _SAID.value),
            Fact.deleted_seq.is_not(None),
        )
    )


def _document(row: Row[Any]) -> AnnotatedDocument:
    names = {column.key: getattr(row, column.key) for column in _ABOUT}
    ordered = tuple(sorted((FactSpan(*span) for span in row.facts or ()), key=lambda span: span.start))
    return AnnotatedDocument(text=row.text, facts=ordered, **names)
