"""Copies rows into the tables in bulk, by COPY and under ids that were reserved before.

The lines of COPY's text format are built here, which takes a fraction of the time of the driver's `write_row`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.store.database import connection_of
from colmlm.kb.texts.frames import frame_of
from colmlm.kb.texts.sentences import sentence_ends

_BLOCK = 1 << 18

_COPY_DOCUMENTS = (
    b"COPY document (id, corpus, external_id, title, uri, licence, revision, sha256, record_sha256, text)"
    b" FROM STDIN"
)
_COPY_FACTS = (
    b"COPY fact (id, document_id, ordinal, span_start, span_end, question, answer, created_seq, deleted_seq,"
    b" review, review_seq, doubt, frame) FROM STDIN"
)
_COPY_VERSIONS = b"COPY fact_version (fact_id, version, value, from_seq, to_seq) FROM STDIN"


@dataclass(slots=True)
class IncomingDocument:
    """A document to be inserted: its digests, its new id, and which of its facts (by ordinal) exist already."""

    document: AnnotatedDocument
    sha256: str
    record_sha256: str
    document_id: int = 0
    kept: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_new_facts(self) -> int:
        return len(self.document.facts) - len(self.kept)


def reserve(session: Session, sequence: str, count: int) -> int:
    """Reserves `count` successive ids and gives the first.

    The log must be locked, as others draw ids only with that lock.
    """
    reserving = text(
        "SELECT setval(CAST(:name AS regclass), nextval(CAST(:name AS regclass)) + :count - 1) - :count + 1"
    )
    first: int = session.execute(reserving, {"name": sequence, "count": count}).scalar_one()
    return first


def copy_blocks(session: Session, statement: bytes, blocks: Iterable[bytes | str]) -> None:
    """Runs one COPY FROM STDIN with these blocks."""
    with connection_of(session).cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            copy.write(block)


def copy_documents(
    session: Session,
    corpus: str,
    rows: Iterable[IncomingDocument],
    first_fact_id: int,
    seq: int,
    *,
    proposed: bool,
) -> None:
    """Inserts documents under their ids, and their new facts, in order, under ids from `first_fact_id` on.

    The facts have the review that their file says; the others are accepted, or where a machine marked them `proposed`.
    """
    rows = list(rows)
    review = f"proposed\t{seq}" if proposed else "accepted\t\\N"
    copy_blocks(session, _COPY_DOCUMENTS, joined(_document_line(corpus, row) for row in rows))
    # A connection carries one COPY at a time, so the versions, a short line each, are collected for the next.
    versions: list[str] = []
    copy_blocks(session, _COPY_FACTS, joined(_fact_lines(rows, first_fact_id, seq, versions, review)))
    copy_blocks(session, _COPY_VERSIONS, joined(versions))


def joined(lines: Iterable[str]) -> Iterator[str]:
    """Joins the lines into blocks, since a message to the server for each would cost more than the line."""
    block: list[str] = []
    size = 0
    for line in lines:
        block.append(line)
        size += len(line)
        if size >= _BLOCK:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def _document_line(corpus: str, row: IncomingDocument) -> str:
    d = row.document
    names = (corpus, d.external_id, d.title, d.uri, d.licence, d.revision, row.sha256, row.record_sha256)
    return "\t".join((str(row.document_id), *map(_field, names), _field(d.text))) + "\n"


def _fact_lines(
    rows: Iterable[IncomingDocument], fact_id: int, seq: int, versions: list[str], review: str
) -> Iterator[str]:
    """Yields the lines of the facts of each document, and appends those of their versions to `versions`."""
    for row in rows:
        facts, document_id, kept = [], row.document_id, row.kept
        title, text_ = row.document.title, row.document.text
        ends = sentence_ends(text_) if row.num_new_facts else []
        for ordinal, span in enumerate(row.document.facts):
            if ordinal in kept:
                continue
            deleted = seq if span.deleted else r"\N"
            question = r"\N" if span.question is None else escaped(span.question)
            answer = r"\N" if span.answer is None else escaped(span.answer)
            doubt = r"\N" if span.doubt is None else escaped(span.doubt)
            said = review if span.review is None else f"{span.review}\t{seq}"
            facts.append(
                f"{fact_id}\t{document_id}\t{ordinal}\t{span.start}\t{span.end}\t{question}\t{answer}\t{seq}\t{deleted}"
                f"\t{said}\t{doubt}\t{frame_of(title, text_, ends, span.start, span.end)}\n"
            )
            if span.current is None:
                versions.append(f"{fact_id}\t1\t{escaped(span.value)}\t{seq}\t{deleted}\n")
            else:  # the value in the text was never true in this base, so its range of changes is empty
                versions.append(f"{fact_id}\t1\t{escaped(span.value)}\t{seq}\t{seq}\n")
                versions.append(f"{fact_id}\t2\t{escaped(span.current)}\t{seq}\t{deleted}\n")
            fact_id += 1
        yield "".join(facts)


def _field(words: str | None) -> str:
    return r"\N" if words is None else escaped(words)


def escaped(words: str) -> str:
    """Escapes the characters that end a field or a line, which few texts have."""
    if "\\" in words:
        words = words.replace("\\", "\\\\")
    if "\n" in words:
        words = words.replace("\n", "\\n")
    if "\t" in words:
        words = words.replace("\t", "\\t")
    if "\r" in words:
        words = words.replace("\r", "\\r")
    return words
