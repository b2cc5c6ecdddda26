"""Editions: decides which facts a document keeps when it is ingested again with another record.

The document gets a new row; the old row stays as evidence of what was once spliced. A fact moves to the new row, with
its id, corrections and tombstone, where its value, its question (the one it has, or came with) and the 40 characters
before it are the same. A fact of a release, which had no text, is known by its value, and gets its place and its
question. Where any of the text before it changed, its keys are dropped and the next rekey makes new ones. The other
facts are deleted, also those that were marked or moved by hand to where the record has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.facts.edits import end_facts
from colmlm.kb.store.copying import IncomingDocument
from colmlm.kb.store.database import connection_of

_STAGE = b"""
CREATE TEMPORARY TABLE staged_document (position bigint PRIMARY KEY, old_id bigint, new_id bigint, text text)
ON COMMIT DROP;
CREATE TEMPORARY TABLE staged_fact (
    position bigint, ordinal integer, span_start integer, span_end integer, value text, question text, answer text,
    kept_id bigint
) ON COMMIT DROP;
"""
_UNSTAGE = "DROP TABLE staged_document, staged_fact"

_REPLACE_OLD = "UPDATE document d SET replaced_seq = :seq FROM staged_document s WHERE d.id = s.old_id"

# Where several facts look alike, the nth old one is taken for the nth new one. The value compared is the one that the
# old text said, without later corrections. A fact that asks something else by now is known by its first question, too.
_KEEP_STANDING = """
WITH old AS (
    SELECT s.position, f.id, f.span_start, v.value, right(substr(d.text, 1, f.span_start), 40) AS before,
           coalesce(f.question, '') AS question, coalesce(p.question, '') AS first, p.fact_id IS NOT NULL AS is_mended
    FROM staged_document s
    JOIN document d ON d.id = s.old_id
    JOIN fact f ON f.document_id = d.id
    JOIN fact_version v ON v.fact_id = f.id AND v.version = f.said_version
    LEFT JOIN fact_past p ON p.fact_id = f.id
        AND p.version = (SELECT min(q.version) FROM fact_past q WHERE q.fact_id = f.id)
), was AS (
    SELECT *, row_number() OVER (PARTITION BY position, value, question, before ORDER BY span_start) AS nth FROM (
        SELECT position, id, span_start, value, before, question, true AS is_current FROM old
        UNION ALL
        SELECT position, id, span_start, value, before, first, false FROM old WHERE is_mended AND first <> question
    ) AS known
), now AS (
    SELECT *, row_number() OVER (PARTITION BY position, value, question, before ORDER BY span_start) AS nth FROM (
        SELECT s.position, f.ordinal, f.span_start, f.value, coalesce(f.question, '') AS question,
               right(substr(s.text, 1, f.span_start), 40) AS before
        FROM staged_document s
        JOIN staged_fact f ON f.position = s.position
    ) AS new
), kept AS (
    SELECT DISTINCT ON (was.id) was.id, position, now.ordinal
    FROM was JOIN now USING (position, value, question, before, nth) ORDER BY was.id, was.is_current DESC
)
UPDATE staged_fact f SET kept_id = kept.id FROM kept
WHERE f.position = kept.position AND f.ordinal = kept.ordinal
RETURNING f.position, f.ordinal, f.kept_id
"""
# A fact of a release has no place in its document until this is ingested: it is known by its value, the nth by the nth.
_KEEP_UNPLACED = """
WITH was AS (
    SELECT s.position, f.id, v.value, row_number() OVER (PARTITION BY s.position, v.value ORDER BY f.ordinal) AS nth
    FROM staged_document s
    JOIN fact f ON f.document_id = s.old_id AND f.span_start IS NULL
    JOIN fact_version v ON v.fact_id = f.id AND v.version = f.said_version
), now AS (
    SELECT position, ordinal, value, row_number() OVER (PARTITION BY position, value ORDER BY span_start) AS nth
    FROM staged_fact
)
UPDATE staged_fact f SET kept_id = was.id FROM was JOIN now USING (position, value, nth)
WHERE f.position = now.position AND f.ordinal = now.ordinal AND f.kept_id IS NULL
RETURNING f.position, f.ordinal, f.kept_id
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
SET document_id = s.new_id, ordinal = k.ordinal, span_start = k.span_start, span_end = k.span_end,
    question = coalesce(f.question, k.question),
    answer = CASE WHEN k.value = (  -- the answer of the new edition says what that does, and not a corrected value
        SELECT v.value FROM fact_version v WHERE v.fact_id = f.id ORDER BY v.version DESC LIMIT 1
    ) THEN k.answer ELSE f.answer END
FROM staged_fact k JOIN staged_document s USING (position) WHERE f.id = k.kept_id
RETURNING f.id, f.deleted_seq IS NOT NULL AS is_deleted
"""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What replacing documents did to their facts: which were deleted, which were kept, and which keys were dropped."""

    gone: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    kept_deleted: int = 0
    dropped_keys: tuple[int, ...] = field(default=())


def replace_old(session: Session, changed: Mapping[int, IncomingDocument], seq: int) -> Replaced:
    """Marks the old rows of changed documents, given by old id, as replaced; notes in new ones what facts they keep.

    The caller inserts the new rows after this, since two current rows of one document would clash, and then calls
    `move_kept`.
    """
    rows = list(changed.values())
    _stage(session, list(changed), rows)
    _run(session, _REPLACE_OLD, seq=seq)
    kept: dict[int, dict[int, int]] = {}
    for position, ordinal, fact_id in [*_run(session, _KEEP_STANDING), *_run(session, _KEEP_UNPLACED)]:
        kept.setdefault(position, {})[ordinal] = fact_id
    for position, facts in kept.items():
        rows[position].kept = facts
    gone = list(_run(session, _GONE).scalars())
    end_facts(session, gone, seq)
    return Replaced(tuple(gone), dropped_keys=tuple(sorted(_run(session, _DROP_STALE_KEYS).scalars())))


def move_kept(session: Session, replaced: Replaced) -> Replaced:
    """Moves the facts that are kept to the new rows of their documents."""
    moved = _run(session, _MOVE_KEPT).all()
    _run(session, _UNSTAGE)
    kept = tuple(sorted(row.id for row in moved))
    return replace(replaced, kept=kept, kept_deleted=sum(row.is_deleted for row in moved))


def _run(session: Session, statement: str, **names: Any) -> Any:
    return session.execute(text(statement), names)


def _stage(session: Session, old_ids: list[int], rows: list[IncomingDocument]) -> None:
    with connection_of(session).cursor() as cursor:
        cursor.execute(_STAGE)
        with cursor.copy(b"COPY staged_document (position, old_id, new_id, text) FROM STDIN") as copy:
            for position, (old_id, row) in enumerate(zip(old_ids, rows, strict=True)):
                copy.write_row((position, old_id, row.document_id, row.document.text))
        columns = b"position, ordinal, span_start, span_end, value, question, answer"
        with cursor.copy(b"COPY staged_fact (" + columns + b") FROM STDIN") as copy:
            for position, row in enumerate(rows):
                for n, s in enumerate(row.document.facts):
                    copy.write_row((position, n, s.start, s.end, s.value, s.question, s.answer))
        cursor.execute(b"ANALYZE staged_document, staged_fact")
