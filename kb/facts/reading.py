"""Reads facts, documents and corpora from the database. The functions take the session first.

A corpus comes in few ingests, so its documents lie close together, and so do their sentences and facts. Given the
ranges of their ids, the server uses an index to skip the matches of other corpora, which it would read otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, exists, false, func, or_, select, text
from sqlalchemy.orm import InstrumentedAttribute, Session

from colmlm.kb.errors import FactNotFound, refusals
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.records import FACTS_LISTED, CorpusStats, FactRecord, SamplePlace, Source
from colmlm.kb.store.database import IncomingDocument
from colmlm.kb.tables import CorpusReviewRow, DocumentRow, FactRow, FactVersionRow, copy_columns

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
    """Give these facts by id; ids that no fact has are left out."""
    storable = [fact_id for fact_id in fact_ids if 0 < fact_id <= MAX_ID]
    rows = session.execute(_statement().where(FactRow.id == func.any(storable)))
    return {record.fact_id: record for record in map(_record, rows)}


def get_fact(session: Session, fact_id: int) -> FactRecord:
    if (record := fact_records(session, [fact_id]).get(fact_id)) is None:
        raise FactNotFound([fact_id])
    return record


def text_condition(text: str) -> ColumnElement[bool]:
    """Give a condition (SQL): value or question of a fact contains the text, literally and in either case."""
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
    """List the facts that fit the filters of `FactsSought`, by id. Raises `CorpusNotFound`."""
    statement = _statement().where(FactRow.id > after)
    if corpus is not None:
        require_corpus(session, corpus)
        statement = statement.where(DocumentRow.corpus == corpus)
    if document_id is not None:
        statement = statement.where(FactRow.document_id == document_id)
    if text:
        statement = statement.where(text_condition(text))
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
    return copy_columns(
        FactRecord,
        fact,
        fact_id=fact.id,
        value=version.value,
        version=version.version,
        version_seq=version.from_seq,
        source=source,
        sample=sample,
    )


CONTEXT_CHARACTERS = 300  # that are read on either side of a value, to find its sentence

# Where a version stood is in the first row of the past from it on, and in the fact itself where there is none. A
# version with another question, or one that was restored, repeats a value that an earlier change gave.
_ORIGINS = text("""
SELECT v.fact_id, v.version, v.value, v.from_seq, v.to_seq, place.question, c.seq, c.actor, d.id AS document_id,
       d.corpus, d.external_id, d.title, d.uri, d.licence, d.revision, place.span_start AS start, place.span_end AS end,
       substr(d.text, place.span_start + 1, place.span_end - place.span_start) AS said,
       substr(d.text, greatest(place.span_start - :most, 0) + 1, least(place.span_start, :most)) AS before,
       substr(d.text, place.span_end + 1, :most) AS after
FROM unnest(CAST(:ids AS bigint[]), CAST(:versions AS int[])) AS asked (fact_id, version)
JOIN fact_version v ON v.fact_id = asked.fact_id AND (v.version = asked.version OR asked.version IS NULL)
JOIN fact f ON f.id = v.fact_id
CROSS JOIN LATERAL (
    SELECT version, question, document_id, span_start, span_end FROM fact_past
    WHERE fact_id = v.fact_id AND version >= v.version
    UNION ALL SELECT NULL, f.question, f.document_id, f.span_start, f.span_end ORDER BY version LIMIT 1
) AS place
CROSS JOIN LATERAL (
    SELECT from_seq FROM fact_version w WHERE w.fact_id = v.fact_id AND w.version > coalesce((
        SELECT max(version) FROM fact_version x
        WHERE x.fact_id = v.fact_id AND x.version < v.version AND x.value <> v.value
    ), 0) ORDER BY version LIMIT 1
) AS given
LEFT JOIN document d ON d.id = place.document_id
LEFT JOIN change c ON c.seq = given.from_seq
ORDER BY v.fact_id, v.version
""")


@dataclass(frozen=True, slots=True)
class VersionOrigin:
    """The origin of a version of a fact: the change that gave its value, and its place in a document.

    `document_says` is the text of the span if the value differs from it, because somebody entered it. `around` is the
    span with the text on either side; the span begins at `start` in it. Without a place these and `source` are None.
    """

    version: int
    value: str
    from_seq: int
    to_seq: int | None
    question: str | None
    given_seq: int | None
    actor: str | None
    document_id: int | None
    source: Source | None
    document_says: str | None
    around: str | None
    start: int


def version_origins(
    session: Session, versions: Iterable[tuple[int, int | None]]
) -> dict[tuple[int, int], VersionOrigin]:
    """Give the origins of versions, by fact id and version; None as a version asks for all versions of its fact."""
    asked = sorted(set(versions), key=str)
    given = {
        "ids": [fact for fact, _ in asked],
        "versions": [n for _, n in asked],
        "most": CONTEXT_CHARACTERS,
    }
    rows = session.execute(_ORIGINS, given) if asked else ()
    return {(row.fact_id, row.version): _origin(row) for row in rows}


def _origin(row: Row[Any]) -> VersionOrigin:
    of_document = {column.key: getattr(row, column.key) for column in DOCUMENT_COLUMNS}
    placed = row.said is not None
    return VersionOrigin(
        row.version, row.value, row.from_seq, row.to_seq, row.question, row.seq, row.actor, row.document_id,
        Source(document_id=row.document_id, start=row.start, end=row.end, **of_document) if placed else None,
        row.said if row.said != row.value else None,
        f"{row.before}{row.said}{row.after}" if placed else None,
        len(row.before or ""),
    )  # fmt: skip


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
    """Give the ids of all facts, also deleted ones, of the current documents with these external ids."""
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


def kept_stated_facts(taken: Iterable[IncomingDocument]) -> list[int]:
    """Give the ids of the facts that changed documents keep, except those that the new record says are proposed."""
    return [
        fact_id
        for row in taken
        for ordinal, fact_id in row.kept.items()
        if row.document.facts[ordinal].review != "proposed"
    ]


def stated_proposed_facts(session: Session, documents: Mapping[int, IncomingDocument]) -> list[int]:
    """List the ids of proposed facts that these records, by document id, have unchanged and not as proposed."""
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
    """Give up to eight ranges of document ids (first, last) that cover a corpus; other corpora's ids may be within."""
    edges = sorted(
        (row.id, row.before)
        for row in session.execute(_EDGES, {"corpus": corpus, "far": _FAR, "most": _MOST})
    )
    if not edges:
        return [(0, 0)]  # no document has this id
    ends = [before for _, before in edges[1:]] + [session.scalar(_LAST, {"corpus": corpus})]
    return [(first, last) for (first, _), last in zip(edges, ends, strict=True)]


def stretches_condition(stretches: Stretches, column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Give a condition (SQL): the document id in the column lies in one of these ranges."""
    return or_(*(column.between(first, last) for first, last in stretches))
