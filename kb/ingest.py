"""Ingest: annotated documents into a corpus, by COPY, in one transaction with one change.

The file is read into a temporary table first and the log's lock is taken only then, so that a slow or long
file keeps no editor waiting. What to do with each document is decided under the lock, in SQL:

- unchanged (same digest of the whole record): counted, not written; its deleted facts stay deleted;
- new: inserted;
- changed: the document gets a new row and the old one stays as evidence of what was once spliced. A fact
  that stands as it was (value, question and the 40 characters before) moves to the new row with its id,
  corrections and tombstone; where anything before it changed, its keys go and it waits to be keyed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from kb import audit
from kb.corpus import AnnotatedDocument, FactSpan, Parsed, Refusal, check_spans, to_record
from kb.errors import InvalidValue
from kb.facts import end_facts
from kb.records import IngestReport

_STAGE = """
CREATE TEMPORARY TABLE staged_document (
    position bigint PRIMARY KEY, external_id text UNIQUE, title text, uri text, licence text, revision text,
    sha256 text, record_sha256 text, text text, old_id bigint, new_id bigint
) ON COMMIT DROP;
CREATE TEMPORARY TABLE staged_fact (
    position bigint, ordinal integer, span_start integer, span_end integer, value text, question text, answer text,
    kept_id bigint, new_id bigint
) ON COMMIT DROP;
"""

_DROP_UNCHANGED = """
DELETE FROM staged_document s USING document d
WHERE d.corpus = :corpus AND d.external_id = s.external_id AND d.replaced_seq IS NULL
  AND d.record_sha256 = s.record_sha256
"""
_DROP_FACTS_OF_UNCHANGED = """
DELETE FROM staged_fact f WHERE NOT EXISTS (SELECT FROM staged_document s WHERE s.position = f.position)
"""
_FIND_OLD = """
UPDATE staged_document s SET old_id = d.id FROM document d
WHERE d.corpus = :corpus AND d.external_id = s.external_id AND d.replaced_seq IS NULL
"""
_REPLACE_OLD = "UPDATE document d SET replaced_seq = :seq FROM staged_document s WHERE d.id = s.old_id"
_INSERT_DOCUMENTS = """
WITH inserted AS (
    INSERT INTO document (corpus, external_id, uri, title, licence, revision, sha256, record_sha256, text)
    SELECT :corpus, external_id, uri, title, licence, revision, sha256, record_sha256, text
    FROM staged_document ORDER BY position
    RETURNING id, external_id
)
UPDATE staged_document s SET new_id = i.id FROM inserted i WHERE i.external_id = s.external_id
"""

# The nth of several that look alike answers to the nth. Version 1 is what the old text said; a correction since
# is not in it.
_KEEP_STANDING = """
WITH was AS (
    SELECT *, row_number() OVER (PARTITION BY position, value, question, before ORDER BY span_start) AS nth FROM (
        SELECT s.position, f.id, f.span_start, v.value, coalesce(f.question, '') AS question,
               right(substr(d.text, 1, f.span_start), 40) AS before
        FROM staged_document s
        JOIN document d ON d.id = s.old_id
        JOIN fact f ON f.document_id = d.id
        JOIN fact_version v ON v.fact_id = f.id AND v.version = 1
    ) AS old
), now AS (
    SELECT *, row_number() OVER (PARTITION BY position, value, question, before ORDER BY span_start) AS nth FROM (
        SELECT s.position, f.ordinal, f.span_start, f.value, coalesce(f.question, '') AS question,
               right(substr(s.text, 1, f.span_start), 40) AS before
        FROM staged_document s
        JOIN staged_fact f ON f.position = s.position
        WHERE s.old_id IS NOT NULL
    ) AS new
)
UPDATE staged_fact f SET kept_id = was.id FROM was JOIN now USING (position, value, question, before, nth)
WHERE f.position = now.position AND f.ordinal = now.ordinal
"""
_GONE = """
SELECT f.id FROM staged_document s JOIN fact f ON f.document_id = s.old_id
WHERE f.deleted_seq IS NULL AND NOT EXISTS (SELECT FROM staged_fact k WHERE k.kept_id = f.id)
ORDER BY f.id
"""
_DROP_STALE_KEYS = """
DELETE FROM fact_key k USING staged_fact f, staged_document s, fact was, document d
WHERE s.position = f.position AND was.id = f.kept_id AND d.id = s.old_id AND k.fact_id = f.kept_id
  AND substr(d.text, 1, was.span_start) <> substr(s.text, 1, f.span_start)
RETURNING k.id
"""
_MOVE_KEPT = """
UPDATE fact f
SET document_id = s.new_id, ordinal = k.ordinal, span_start = k.span_start, span_end = k.span_end, answer = k.answer
FROM staged_fact k JOIN staged_document s USING (position) WHERE f.id = k.kept_id
RETURNING f.id
"""
_NUMBER_FACTS = """
WITH numbered AS MATERIALIZED (
    SELECT position, ordinal, nextval(pg_get_serial_sequence('fact', 'id')) AS id
    FROM (SELECT position, ordinal FROM staged_fact WHERE kept_id IS NULL ORDER BY position, ordinal) AS ordered
)
UPDATE staged_fact f SET new_id = n.id FROM numbered n WHERE n.position = f.position AND n.ordinal = f.ordinal
"""
_INSERT_FACTS = """
INSERT INTO fact (id, document_id, ordinal, span_start, span_end, question, answer, created_seq)
SELECT f.new_id, s.new_id, f.ordinal, f.span_start, f.span_end, f.question, f.answer, :seq
FROM staged_fact f JOIN staged_document s USING (position) WHERE f.new_id IS NOT NULL
"""
_INSERT_VERSIONS = """
INSERT INTO fact_version (fact_id, version, value, from_seq)
SELECT new_id, 1, value, :seq FROM staged_fact WHERE new_id IS NOT NULL
"""
_COUNTS = """
SELECT (SELECT count(*) FROM staged_document), (SELECT count(*) FROM staged_document WHERE old_id IS NOT NULL),
       count(new_id), min(new_id), max(new_id) FROM staged_fact
"""


@dataclass(slots=True)
class _Reading:
    """What reading the file gave so far."""

    taken: int = 0
    overlaps_resolved: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)


def ingest(
    session: Session,
    parsed: Iterable[Parsed],
    corpus: str,
    *,
    actor: str,
    reason: str,
    on_document: Callable[[int], None] | None = None,
) -> IngestReport:
    """Take every sound document of `parsed`; what is refused is named in the report, and the rest goes on.

    `documents` and `facts` count what was inserted (for a replaced document, the facts that were not there
    before); `on_document` hears how many documents were read so far.
    """
    audit.check_text("corpus", corpus, blank=False, limit=200)
    reading = _Reading()
    _stage(session, parsed, reading, on_document)
    pending = audit.begin(session, actor, reason)
    names = {"corpus": corpus, "seq": pending.seq}
    unchanged = _run(session, _DROP_UNCHANGED, names).rowcount
    _run(session, _DROP_FACTS_OF_UNCHANGED, names)
    touched, dropped_keys = _replace(session, names)
    for statement in (_NUMBER_FACTS, _INSERT_FACTS, _INSERT_VERSIONS):
        _run(session, statement, names)
    documents, replaced, facts, first, last = _run(session, _COUNTS, names).one()
    seq = None
    if documents:
        payload = {
            "corpus": corpus,
            "documents": documents,
            "replaced": replaced,
            "inserted": [first, last],
            "dropped_keys": dropped_keys,
        }
        # An ingest's own facts are those with its seq in `created_seq`: a million ids are not listed twice.
        seq = audit.append(
            session, pending, "ingest", touched, num_facts=facts + len(touched), payload=payload
        )
    return IngestReport(
        corpus=corpus,
        documents=documents,
        facts=facts,
        unchanged=unchanged,
        replaced=replaced,
        overlaps_resolved=reading.overlaps_resolved,
        refusals=tuple(reading.refusals),
        seq=seq,
    )


def _replace(session: Session, names: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Put new rows under changed documents; the old facts this touched, and the keys it dropped."""
    _run(session, _FIND_OLD, names)
    _run(session, _REPLACE_OLD, names)
    _run(session, _INSERT_DOCUMENTS, names)
    _run(session, _KEEP_STANDING, names)
    gone = list(_run(session, _GONE, names).scalars())
    end_facts(session, gone, names["seq"])
    dropped_keys = sorted(_run(session, _DROP_STALE_KEYS, names).scalars())
    moved = list(_run(session, _MOVE_KEPT, names).scalars())
    return sorted((*gone, *moved)), dropped_keys


def _run(session: Session, statement: str, names: dict[str, Any]) -> Any:
    return session.execute(text(statement), {name: names[name] for name in names if f":{name}" in statement})


def _stage(
    session: Session, parsed: Iterable[Parsed], reading: _Reading, on_document: Callable[[int], None] | None
) -> None:
    """COPY the sound documents into the temporary tables.

    A connection carries one COPY at a time, so facts wait for theirs in memory: a few numbers and strings each.
    """
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    facts: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        cursor.execute(_STAGE.encode())
        columns = b"position, external_id, title, uri, licence, revision, sha256, record_sha256, text"
        with cursor.copy(b"COPY staged_document (" + columns + b") FROM STDIN") as copy:
            for document in _sound(parsed, reading, on_document):
                copy.write_row(_document_row(reading.taken, document))
                facts += ((reading.taken, n, *_fact_row(span)) for n, span in enumerate(document.facts))
        columns = b"position, ordinal, span_start, span_end, value, question, answer"
        with cursor.copy(b"COPY staged_fact (" + columns + b") FROM STDIN") as copy:
            for row in facts:
                copy.write_row(row)
        cursor.execute(b"ANALYZE staged_document, staged_fact")


def _sound(
    parsed: Iterable[Parsed], reading: _Reading, on_document: Callable[[int], None] | None
) -> Iterator[AnnotatedDocument]:
    for item in parsed:
        reading.refusals += item.refusals
        reading.overlaps_resolved += item.overlaps_resolved
        if (document := item.document) is None:
            continue
        if (refusal := _refusal(document, reading.seen)) is not None:
            reading.refusals.append(refusal)
            continue
        kept, refusals = check_spans(document.external_id, document.text, document.facts)
        reading.refusals += refusals
        reading.seen.add(document.external_id)
        reading.taken += 1
        yield _with_facts(document, kept)
        if on_document is not None:
            on_document(reading.taken)


def _refusal(document: AnnotatedDocument, seen: set[str]) -> Refusal | None:
    if document.external_id in seen:
        return Refusal(document.external_id, 0, "a second document with this id in the same file")
    try:
        _check_storable(document)
    except InvalidValue as error:
        return Refusal(document.external_id, 0, str(error))
    return None


def _check_storable(document: AnnotatedDocument) -> None:
    """One character that cannot be stored would end the COPY, and with it the whole file."""
    audit.check_text("document id", document.external_id, blank=False, limit=1000)
    audit.check_text("text", document.text, blank=False, limit=100_000_000)
    for name in ("title", "uri", "licence", "revision"):
        audit.check_text(name, getattr(document, name) or "")
    for span in document.facts:
        audit.check_text("value", span.value)
        audit.check_text("question", span.question or "")
        audit.check_text("answer", span.answer or "")


def _with_facts(document: AnnotatedDocument, facts: tuple[Any, ...]) -> AnnotatedDocument:
    return document if facts == document.facts else replace(document, facts=facts)


def _document_row(position: int, document: AnnotatedDocument) -> tuple[Any, ...]:
    record = json.dumps(to_record(document), sort_keys=True, separators=(",", ":"))
    return (
        position,
        document.external_id,
        document.title,
        document.uri,
        document.licence,
        document.revision,
        hashlib.sha256(document.text.encode()).hexdigest(),
        hashlib.sha256(record.encode()).hexdigest(),
        document.text,
    )


def _fact_row(span: FactSpan) -> tuple[Any, ...]:
    return span.start, span.end, span.value, span.question, span.answer
