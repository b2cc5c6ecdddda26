"""Export: writes a corpus as annotated documents, from which an ingest restores the same state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from sqlalchemy import Row, case, exists, func, select
from sqlalchemy.orm import Session, aliased

from colmlm.kb.corpus.format import NO_TEXT, AnnotatedDocument, FactSpan
from colmlm.kb.errors import TextsMissing
from colmlm.kb.facts.reading import DOCUMENT_COLUMNS
from colmlm.kb.tables import DocumentRow, FactPastRow, FactRow, FactVersionRow

_ABOUT = DOCUMENT_COLUMNS[1:]


def export(session: Session, corpus: str, *, live_only: bool) -> Iterator[AnnotatedDocument]:
    """Gives the corpus's current documents in the order they came, each with its facts, corrections and deletions.

    With `live_only`, which training wants, each has only the live facts that the text still says. Erased facts are in
    no export, since the text does not say them any more.
    """
    facts = (
        select(_spans())
        .select_from(FactRow)
        .join(_SAID, (_SAID.fact_id == FactRow.id) & (_SAID.version == FactRow.said_version))
    )
    facts = facts.join(_LAST, (_LAST.fact_id == FactRow.id) & (_LAST.version == _last_version()))
    facts = facts.where(FactRow.document_id == DocumentRow.id, FactRow.erased_seq.is_(None))
    if live_only:
        facts = facts.where(_LAST.to_seq.is_(None), _LAST.value == _SAID.value)
    statement = (
        select(DocumentRow.text, facts.correlate(DocumentRow).scalar_subquery().label("facts"), *_ABOUT)
        .where(DocumentRow.corpus == corpus, DocumentRow.replaced_seq.is_(None))
        .order_by(DocumentRow.id)
        .execution_options(yield_per=200)
    )
    with closing(session.execute(statement)) as rows:  # closed also where a reader stops in the middle
        yield from map(_document, rows)


def require_texts(session: Session, corpus: str) -> None:
    """Raises `TextsMissing` where samples of a release have no text yet: their facts would be left out."""
    without = select(func.count()).where(
        DocumentRow.corpus == corpus, DocumentRow.replaced_seq.is_(None), DocumentRow.sha256 == NO_TEXT
    )
    if missing := session.scalar(without) or 0:
        raise TextsMissing(corpus, missing)


_SAID = aliased(FactVersionRow)  # the value that the text says
_LAST = aliased(FactVersionRow)


def _last_version() -> Any:
    newest = select(func.max(FactVersionRow.version)).where(FactVersionRow.fact_id == FactRow.id)
    return newest.correlate(FactRow).scalar_subquery()


def _said_answer() -> Any:
    """Build an expression (SQL): the annotator's answer to the value in the text, also if that was edited."""
    since_said = (FactPastRow.fact_id == FactRow.id, FactPastRow.version >= FactRow.said_version)
    first = select(FactPastRow.answer).where(*since_said).order_by(FactPastRow.version).limit(1)
    changed = exists().where(*since_said).correlate(FactRow)
    return case((changed, first.correlate(FactRow).scalar_subquery()), else_=FactRow.answer)


def _spans() -> Any:
    return func.jsonb_agg(
        func.jsonb_build_array(
            FactRow.span_start,
            FactRow.span_end,
            _SAID.value,
            FactRow.question,
            _said_answer(),
            func.nullif(_LAST.value, _SAID.value),
            FactRow.deleted_seq.is_not(None),
            None,  # no file has the doubts of a machine
            case((FactRow.review_seq.is_not(None), FactRow.review)),
        )
    )


def _document(row: Row[Any]) -> AnnotatedDocument:
    names = {column.key: getattr(row, column.key) for column in _ABOUT}
    ordered = tuple(sorted((FactSpan(*span) for span in row.facts or ()), key=lambda span: span.start))
    return AnnotatedDocument(text=row.text, facts=ordered, **names)
