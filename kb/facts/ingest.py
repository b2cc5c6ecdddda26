"""Ingest: writes annotated documents into a corpus by COPY, in pieces; each piece is one transaction with one change.

A piece is read and checked before the log's lock is taken, so that a slow or long file keeps no editor waiting.
Under the lock each document is compared with what is stored:

- unchanged (same digest of the whole record): counted, not written; its deleted facts stay deleted;
- new: inserted; one that was removed is put back first, and then compared (`kb.facts.facts`);
- changed: the document gets a new row; the comment "Editions" below says which facts it keeps.

An ingest that was interrupted is resumed by ingesting the same file again: it passes over what is stored.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, Refusal, check_spans, document_digests
from colmlm.kb.errors import InvalidValue
from colmlm.kb.facts import edits, pairs, sentences
from colmlm.kb.facts.edits import accept_edited, end_facts
from colmlm.kb.facts.facts import put_back_documents
from colmlm.kb.facts.reading import kept_stated_facts, stated_proposed_facts
from colmlm.kb.facts.records import IngestReport
from colmlm.kb.facts.sentences import SearchedText
from colmlm.kb.facts.suppression import Suppressor
from colmlm.kb.log import audit
from colmlm.kb.store.database import (
    IncomingDocument,
    checked_at_once,
    connection_of,
    copy_documents,
    reserve_ids,
)
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import DocumentRow, FactRow

MANY_FACTS = (
    10_000  # from so many new facts or documents on tables are analysed, so that the planner knows their size
)
COMMIT_EVERY = 10_000  # documents in one transaction: a smaller file is ingested as a whole or not at all

# By these columns the planner chooses, and a search by words by how common they are. Texts are left to the autovacuum,
# which an ANALYZE of some columns does not put off.
_ANALYZE = text("""
ANALYZE document (id, corpus, external_id, replaced_seq), sentence (document_id, fact_id, ordinal, words),
    fact (id, document_id, ordinal, created_seq, deleted_seq, erased_seq, review, review_seq, doubt),
    fact_version (fact_id, version, from_seq, to_seq), fact_pair
""")
_MAX_TEXT = 100_000_000
_MAX_WORDS = 10_000
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class SoundDocuments:
    """Give the documents of `parsed` that the database can store, in pieces, and collect refusals of the others."""

    parsed: Iterable[Parsed]
    on_document: Callable[[int], None] | None = None
    taken: int = 0
    overlaps_resolved: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def pieces(self, size: int) -> Iterator[list[AnnotatedDocument]]:
        """Yield lists of at most `size` storable documents."""
        documents = self._sound()
        while piece := list(islice(documents, size)):
            yield piece

    def _sound(self) -> Iterator[AnnotatedDocument]:
        for item in self.parsed:
            self.refusals += item.refusals
            self.overlaps_resolved += item.overlaps_resolved
            if (document := item.document) is None:
                continue
            if (refusal := self._refusal(document)) is not None:
                self.refusals.append(refusal)
                continue
            kept, refusals = check_spans(document.external_id, document.text, document.facts)
            self.refusals += refusals
            self._seen.add(document.external_id)
            self.taken += 1
            yield document if kept == document.facts else replace(document, facts=kept)
            if self.on_document is not None:
                self.on_document(self.taken)

    def _refusal(self, document: AnnotatedDocument) -> Refusal | None:
        if document.external_id in self._seen:
            return Refusal(document.external_id, 0, "a second document with this id in the same file")
        try:
            _check_storable(document)
        except InvalidValue as error:
            return Refusal(document.external_id, 0, f"invalid {error.field}: {error.cause}")
        return None


@dataclass(frozen=True, slots=True)
class IngestRun:
    """One run of an ingest: its corpus, who asked for it and why. With `dry_run` every piece is rolled back."""

    sessions: sessionmaker[Session]
    corpus: str
    actor: str
    reason: str
    commit_every: int = COMMIT_EVERY
    dry_run: bool = False
    allow_erased: bool = False
    generated: bool = False

    def run(
        self,
        parsed: Iterable[Parsed],
        on_document: Callable[[int], None] | None = None,
        on_piece: Callable[[IngestReport], None] | None = None,
        before_piece: Callable[[], None] | None = None,
    ) -> IngestReport:
        """Ingest every storable document of `parsed`; the report names the refused ones.

        `documents` and `facts` count what was inserted (for a replaced document, only its new facts). `on_document` is
        called with the number of documents read so far, `before_piece` before a piece is stored, and `on_piece` with a
        report of what is committed so far.
        """
        audit.check_text("corpus", self.corpus, blank=False, limit=200)
        audit.check_who(self.actor, self.reason)
        reading = SoundDocuments(parsed, on_document)
        so_far = [IngestReport(self.corpus, 0, 0, 0, 0, 0, (), None)]

        def finish(writing: Future[IngestReport]) -> None:
            so_far.append(_sum(so_far.pop(), writing.result()))
            if on_piece is not None:
                on_piece(so_far[0])

        # While the database stores one piece, the next is read and checked.
        with ThreadPoolExecutor(1, "ingest") as writer:
            writing: Future[IngestReport] | None = None
            try:
                for piece in reading.pieces(min(max(1, self.commit_every), sys.maxsize)):
                    if writing is not None:
                        before, writing = writing, None
                        finish(before)
                    if before_piece is not None:
                        before_piece()
                    writing = writer.submit(copy_context().run, self._store_piece, piece)
            finally:
                if writing is not None:
                    finish(writing)
        if so_far[0].documents and not self.dry_run:
            self._settle(max(so_far[0].facts, so_far[0].documents))
        return replace(
            so_far[0], overlaps_resolved=reading.overlaps_resolved, refusals=tuple(reading.refusals)
        )

    def _settle(self, many: int) -> None:
        with self.sessions.begin() as session:
            sentences.merge_new_words(session)
            if many >= MANY_FACTS:
                session.execute(_ANALYZE)

    @retry_on_contention
    def _store_piece(self, piece: Sequence[AnnotatedDocument]) -> IngestReport:
        with self.sessions() as session:
            report = ingest_documents(
                session,
                piece,
                self.corpus,
                actor=self.actor,
                reason=self.reason,
                allow_erased=self.allow_erased,
                generated=self.generated,
            )
            if self.dry_run:
                session.rollback()
                return replace(report, seq=None)
            session.commit()
        return report


def _sum(one: IngestReport, other: IngestReport) -> IngestReport:
    return replace(
        one,
        documents=one.documents + other.documents,
        facts=one.facts + other.facts,
        unchanged=one.unchanged + other.unchanged,
        replaced=one.replaced + other.replaced,
        still_deleted=one.still_deleted + other.still_deleted,
        seq=one.seq if other.seq is None else other.seq,
        suppressed=one.suppressed + other.suppressed,
        suppressed_at=one.suppressed_at + other.suppressed_at,
        contradictions=one.contradictions + other.contradictions,
        duplicates=one.duplicates + other.duplicates,
    )


def ingest_documents(
    session: Session,
    documents: Sequence[AnnotatedDocument],
    corpus: str,
    *,
    actor: str,
    reason: str,
    allow_erased: bool = False,
    generated: bool = False,
) -> IngestReport:
    """Ingest checked documents in one change; putting documents back and accepting facts are changes of their own.

    Erased facts are left out and their text is redacted, unless `allow_erased` lifts their suppression. With
    `generated` the facts are proposed, and the change says so. Does not commit.
    """
    suppressor = Suppressor(session, allow_erased=allow_erased)
    documents = [suppressor.apply(document, corpus)[0] for document in documents]
    rows = _rows(documents)
    pending = audit.begin_change(session, actor, reason)
    external_ids = [document.external_id for document in documents]
    known = _current_documents(session, corpus, external_ids)
    returned = put_back_documents(
        session, pending, corpus, [name for name in external_ids if name not in known]
    )
    if returned is not None:
        pending, known = (
            audit.begin_change(session, actor, reason),
            _current_documents(session, corpus, external_ids),
        )
    changed: dict[int, IncomingDocument] = {}
    unchanged: dict[int, IncomingDocument] = {}
    taken: list[IncomingDocument] = []
    for row in rows:
        old_id, record_sha256 = known.get(row.document.external_id, (None, None))
        if old_id is not None and record_sha256 == row.record_sha256:
            unchanged[old_id] = row
            continue
        taken.append(row)
        if old_id is not None:
            changed[old_id] = row
    record_seen(session, list(unchanged))
    replaced, num_facts, stored_pairs = ReplacedDocuments(), 0, pairs.PairCounts(0, 0)
    seq = None if returned is None else returned.seq
    if taken:
        replaced, inserted, num_facts = _write(
            session, corpus, taken, changed, pending.seq, proposed=generated
        )
        if replaced.kept:
            pairs.keep_pairs(session, replaced.kept, anyway=True)
        if inserted[0] is not None and inserted[1] is not None:
            stored_pairs = pairs.store_pairs_of_range(session, inserted[0], inserted[1])
        payload: dict[str, Any] = {
            "corpus": corpus,
            "documents": len(taken),
            "replaced": len(changed),
            "inserted": inserted,
            "dropped_keys": list(replaced.dropped_keys),
        }
        if generated:
            payload["generated"] = True
        elif replaced.kept:
            payload |= accept_edited(session, kept_stated_facts(taken), pending.seq)
        if came_back := suppressor.lift(session):
            payload["allowed_erased"] = came_back
        # The change does not list the facts it inserted, perhaps a million: they have its seq in `created_seq`.
        touched = sorted((*replaced.gone, *replaced.kept))
        seq = audit.append_change(
            session, pending, "ingest", touched, num_facts=num_facts + len(touched), payload=payload
        )
    if not generated and (fact_ids := stated_proposed_facts(session, unchanged)):
        accepting = audit.begin_change(session, actor, reason) if taken else pending
        accepted = accept_edited(session, fact_ids, accepting.seq)
        seq = edits.append_edit(session, accepting, "accept", fact_ids, accepted).seq
    return IngestReport(
        corpus=corpus,
        documents=len(taken),
        facts=num_facts,
        unchanged=len(unchanged),
        replaced=len(changed),
        overlaps_resolved=0,
        refusals=(),
        seq=seq,
        still_deleted=replaced.kept_deleted + _num_deleted(session, list(unchanged)),
        suppressed=len(suppressor.found),
        suppressed_at=tuple(suppressor.found),
        contradictions=stored_pairs.contradictions,
        duplicates=stored_pairs.duplicates,
    )


_NOTE_SEEN = text("""
INSERT INTO document_seen (document_id, at) SELECT n, now() FROM unnest(CAST(:ids AS bigint[])) AS n ORDER BY n
ON CONFLICT (document_id) DO UPDATE SET at = excluded.at
""")


def record_seen(session: Session, document_ids: Sequence[int]) -> None:
    """Record that these documents were just found unchanged. A retention rule may count from then."""
    if document_ids:
        session.execute(_NOTE_SEEN, {"ids": list(document_ids)})


def _rows(documents: Sequence[AnnotatedDocument]) -> list[IncomingDocument]:
    """Pair each document with its digests, which are computed after its redaction."""
    return [IncomingDocument(document, *document_digests(document)) for document in documents]


def _current_documents(session: Session, corpus: str, external_ids: list[str]) -> dict[str, tuple[int, str]]:
    """Give, by external id, the id of each current document and the SHA-256 of its record (`document_digests`)."""
    statement = select(DocumentRow.external_id, DocumentRow.id, DocumentRow.record_sha256).where(
        DocumentRow.corpus == corpus,
        DocumentRow.external_id == func.any(external_ids),
        DocumentRow.replaced_seq.is_(None),
    )
    return {row.external_id: (row.id, row.record_sha256) for row in session.execute(statement)}


def _write(
    session: Session,
    corpus: str,
    rows: list[IncomingDocument],
    changed: dict[int, IncomingDocument],
    seq: int,
    *,
    proposed: bool,
) -> tuple[ReplacedDocuments, list[int | None], int]:
    """Insert documents; give what they replaced, the first and last id of new facts (or None), and their number."""
    document_id = reserve_ids(session, "document_id_seq", len(rows))
    for offset, row in enumerate(rows):
        row.document_id = document_id + offset
    replaced = replace_documents(session, changed, seq) if changed else ReplacedDocuments()
    num_facts = sum(row.num_new_facts for row in rows)
    first = reserve_ids(session, "fact_id_seq", num_facts) if num_facts else 0
    with checked_at_once(session, num_facts):  # all that these rows refer to is inserted here
        copy_documents(session, corpus, rows, first, seq, proposed=proposed)
        texts = (SearchedText(r.document_id, None, r.document.title, r.document.text) for r in rows)
        # Some texts are cut into sentences while those before are stored.
        with connection_of(session).pipeline():
            sentences.write_sentences(session, texts)
    if changed:
        replaced = move_kept_facts(session, replaced)
    inserted: list[int | None] = [first, first + num_facts - 1] if num_facts else [None, None]
    return replaced, inserted, num_facts


def _num_deleted(session: Session, document_ids: list[int]) -> int:
    if not document_ids:
        return 0
    statement = select(func.count(FactRow.deleted_seq)).where(
        FactRow.document_id == func.any(document_ids), FactRow.erased_seq.is_(None)
    )
    return session.scalar(statement) or 0


def _check_storable(document: AnnotatedDocument) -> None:
    """Raise `InvalidValue` for a document that the database cannot store, since it would fail the whole piece."""
    about = (document.title, document.uri, document.licence, document.revision)
    words = [w for w in about if w]
    for span in document.facts:
        words += (span.value, span.question or "", span.answer or "", span.current or "")
    whole = "".join((document.external_id, document.text, *words))
    if (
        document.text.strip()
        and document.external_id.strip()
        and "\x00" not in whole
        and (whole.isascii() or not _SURROGATE.search(whole))
        and max(map(len, words), default=0) <= _MAX_WORDS
        and len(document.external_id) <= 1000
        and len(document.text) <= _MAX_TEXT
    ):
        return
    _name_the_fault(document)


def _name_the_fault(document: AnnotatedDocument) -> None:
    audit.check_text("document id", document.external_id, blank=False, limit=1000)
    audit.check_text("text", document.text, blank=False, limit=_MAX_TEXT)
    for name in ("title", "uri", "licence", "revision"):
        audit.check_text(name, getattr(document, name) or "", limit=_MAX_WORDS)
    for span in document.facts:
        for name in ("value", "question", "answer", "current"):
            audit.check_text(name, getattr(span, name) or "", limit=_MAX_WORDS)


# Editions: decides which facts a document keeps when it is ingested again with another record.
#
# The document gets a new row; the old row stays as evidence of what was once spliced. A fact moves to the new
# row, with its id, corrections and tombstone, where its value, its question (the one it has, or came with)
# and the 40 characters before it are the same. A fact of a release, which had no text, is known by its value,
# and gets its place and its question. Where any of the text before it changed, its keys are dropped and the
# next rekey makes new ones. The other facts are deleted, also those that were marked or moved by hand to
# where the record has none.

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
class ReplacedDocuments:
    """Facts of replaced documents: ids deleted now (`gone`), ids kept and how many of them deleted; dropped keys."""

    gone: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    kept_deleted: int = 0
    dropped_keys: tuple[int, ...] = field(default=())


def replace_documents(
    session: Session, changed: Mapping[int, IncomingDocument], seq: int
) -> ReplacedDocuments:
    """Mark documents, by old id, as replaced; delete facts that the new records lack, and keys that no longer fit.

    Notes the kept facts in `changed`. The caller inserts the new rows only then, and calls `move_kept_facts` after.
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
    return ReplacedDocuments(
        tuple(gone), dropped_keys=tuple(sorted(_run(session, _DROP_STALE_KEYS).scalars()))
    )


def move_kept_facts(session: Session, replaced: ReplacedDocuments) -> ReplacedDocuments:
    """Move the kept facts to the new rows of their documents; give `replaced` with their ids."""
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
