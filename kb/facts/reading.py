"""Reads facts, documents and corpora from the database. The functions take the session first.

A corpus comes in few ingests, so its documents lie close together, and so do their sentences and facts. Told between
which ids, the server leaves out by an index what other corpora say with a word, where it would read all of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import ColumnElement, Row, Select, and_, exists, false, func, or_, select, text
from sqlalchemy.orm import InstrumentedAttribute, Session

from colmlm.kb.errors import FactNotFound, refusals
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.records import FACTS_LISTED, CorpusStats, FactRecord, Review, SamplePlace, Source
from colmlm.kb.store.database import IncomingDocument
from colmlm.kb.tables import CorpusReviewRow, DocumentRow, FactRow, FactVersionRow

# A fact is shown with its last version, which is the live one unless the fact is deleted.
_LAST_VERSION = (
    select(func.max(FactVersionRow.version))
    .where(FactVersionRow.fact_id == FactRow.id)
    .correlate(FactRow)
    .scalar_subquery()
)

IS_LAST_VERSION = and_(FactVersionRow.fact_id == FactRow.id, FactVersionRow.version == _LAST_VERSION)

IS_LIVE_VERSION = and_(FactVersionRow.fact_id == FactRow.id, FactVersionRow.to_seq.is_(None))

# The inbox has these: what a machine marked, or somebody proposed again, and nobody has settled or deleted.
IS_PROPOSED = and_(FactRow.review == "proposed", FactRow.deleted_seq.is_(None))

# These columns are named one by one, since a list of facts must not load the texts.
DOCUMENT_COLUMNS = (
    DocumentRow.corpus,
    DocumentRow.external_id,
    DocumentRow.title,
    DocumentRow.uri,
    DocumentRow.licence,
    DocumentRow.revision,
)


def _statement() -> Select[*tuple[Any, ...]]:
    return (
        select(FactRow, FactVersionRow, *DOCUMENT_COLUMNS)
        .join(FactVersionRow, IS_LAST_VERSION)
        .outerjoin(DocumentRow, DocumentRow.id == FactRow.document_id)
    )


def fact_records(session: Session, fact_ids: Sequence[int]) -> dict[int, FactRecord]:
    """Give these facts by id; unknown ids are left out."""
    storable = [fact_id for fact_id in fact_ids if 0 < fact_id <= MAX_ID]
    rows = session.execute(_statement().where(FactRow.id == func.any(storable)))
    return {record.fact_id: record for record in map(_record, rows)}


def get_fact(session: Session, fact_id: int) -> FactRecord:
    if (record := fact_records(session, [fact_id]).get(fact_id)) is None:
        raise FactNotFound([fact_id])
    return record


def says_text(text: str) -> ColumnElement[bool]:
    """Give whether value or question of a fact hold a text, literally and in either case."""
    return or_(
        FactVersionRow.value.icontains(text, autoescape=True),
        FactRow.question.icontains(text, autoescape=True),
    )


def list_facts(
    session: Session,
    *,
    corpus: str | None = None,
    document_id: int | None = None,
    text: str | None = None,
    deleted: bool | None = False,
    after: int = 0,
    limit: int = FACTS_LISTED,
) -> list[FactRecord]:
    """Give the facts that `FactsSought` describes, by id."""
    statement = _statement().where(FactRow.id > after)
    if corpus is not None:
        require_corpus(session, corpus)
        statement = statement.where(DocumentRow.corpus == corpus)
    if document_id is not None:
        statement = statement.where(FactRow.document_id == document_id)
    if text:
        statement = statement.where(says_text(text))
    if deleted is not None:
        statement = statement.where(
            FactRow.deleted_seq.is_not(None) if deleted else FactRow.deleted_seq.is_(None)
        )
    return [_record(row) for row in session.execute(statement.order_by(FactRow.id).limit(limit))]


def _record(row: Row[Any]) -> FactRecord:
    fact: FactRow = row.FactRow
    version: FactVersionRow = row.FactVersionRow
    source = sample = None
    if fact.document_id is not None and fact.span_start is not None and fact.span_end is not None:
        of_document = {column.key: getattr(row, column.key) for column in DOCUMENT_COLUMNS}
        source = Source(document_id=fact.document_id, start=fact.span_start, end=fact.span_end, **of_document)
    elif fact.document_id is not None:
        sample = SamplePlace(fact.document_id, row.corpus, row.external_id, fact.ordinal)
    return FactRecord(
        fact_id=fact.id,
        value=version.value,
        version=version.version,
        question=fact.question,
        answer=fact.answer,
        source=source,
        created_seq=fact.created_seq,
        deleted_seq=fact.deleted_seq,
        erased_seq=fact.erased_seq,
        review=cast(Review, fact.review),
        review_seq=fact.review_seq,
        sample=sample,
    )


def document_text(session: Session, document_id: int) -> str:
    found = (
        session.scalar(select(DocumentRow.text).where(DocumentRow.id == document_id))
        if document_id <= MAX_ID
        else None
    )
    if found is None:
        raise refusals.document_not_found(document_id)
    return found


def ids_of_sources(session: Session, corpus: str, external_ids: Sequence[str]) -> list[int]:
    """Give the facts of the current documents of these external ids, also deleted ones."""
    of_sources = DocumentRow.corpus == corpus, DocumentRow.external_id == func.any(list(external_ids))
    statement = select(FactRow.id).join(DocumentRow, DocumentRow.id == FactRow.document_id)
    current = statement.where(*of_sources, DocumentRow.replaced_seq.is_(None))
    return list(session.scalars(current.order_by(FactRow.id)))


def require_corpus(session: Session, corpus: str) -> None:
    if "\x00" in corpus or not session.scalar(select(exists().where(DocumentRow.corpus == corpus))):
        raise refusals.corpus_not_found(corpus)


def list_corpora(session: Session) -> list[CorpusStats]:
    """Count the current documents, the live, deleted and proposed facts of every corpus, by name."""
    current = DocumentRow.replaced_seq.is_(None)
    of_documents = (
        select(
            DocumentRow.corpus,
            func.count().filter(current).label("documents"),
            func.coalesce(func.sum(func.length(DocumentRow.text)).filter(current), 0).label("characters"),
        )
        .group_by(DocumentRow.corpus)
        .subquery()
    )
    of_facts = (
        select(
            DocumentRow.corpus,
            func.count().filter(FactRow.deleted_seq.is_(None)).label("facts"),
            func.count(FactRow.deleted_seq).label("deleted"),
            func.count().filter(IS_PROPOSED).label("proposed"),
        )
        .join(FactRow, FactRow.document_id == DocumentRow.id)
        .group_by(DocumentRow.corpus)
        .subquery()
    )
    counts = (func.coalesce(of_facts.c[name], 0).label(name) for name in ("facts", "deleted", "proposed"))
    statement = (
        select(
            of_documents,
            *counts,
            func.coalesce(CorpusReviewRow.accepted_only, false()).label("accepted_only"),
        )
        .outerjoin(of_facts, of_facts.c.corpus == of_documents.c.corpus)
        .outerjoin(CorpusReviewRow, CorpusReviewRow.corpus == of_documents.c.corpus)
        .order_by(of_documents.c.corpus)
    )
    return [
        CorpusStats(**{**row._mapping, "characters": int(row.characters)})
        for row in session.execute(statement)
    ]


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


Stretches = Sequence[tuple[int, int]]  # of ids, each with the first and the last

_FAR = 1_000  # ids between documents from which on a stretch ends
_MOST = 8
_EDGES = text("""
WITH stood AS (SELECT id, lag(id) OVER (ORDER BY id) AS before FROM document WHERE corpus = :corpus)
SELECT before, id FROM stood WHERE id - before > :far OR before IS NULL ORDER BY id - before DESC LIMIT :most
""")
_LAST = text("SELECT max(id) FROM document WHERE corpus = :corpus")


def stretches_of(session: Session, corpus: str) -> Stretches:
    """Give up to eight stretches, in order, that hold the ids of a corpus's documents, and of others between them."""
    edges = sorted(
        (row.id, row.before)
        for row in session.execute(_EDGES, {"corpus": corpus, "far": _FAR, "most": _MOST})
    )
    if not edges:
        return [(0, 0)]  # no document has this id
    ends = [before for _, before in edges[1:]] + [session.scalar(_LAST, {"corpus": corpus})]
    return [(first, last) for (first, _), last in zip(edges, ends, strict=True)]


def lies_in(stretches: Stretches, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Give whether an id of a document lies in one of the stretches."""
    return or_(*(column.between(first, last) for first, last in stretches))
