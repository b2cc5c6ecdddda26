"""Sentences: the rows by which texts are found by their words. They follow from the texts, and from nothing else.

Every current document has the sentences of its text, with the words of its title in each, and every live fact without
a document one of its question and value. The database takes them away: where a text, a title or a value changes or
stops being current, a trigger deletes them in the same statement, so that nothing is found by what is not said any
more, whatever code made the change. The program writes them, in that transaction, by the functions here.

The functions take the session first and never commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Select, delete, exists, func, null, select, text
from sqlalchemy.orm import Session

from colmlm.kb.store.database import connection_of
from colmlm.kb.tables import DocumentRow, FactRow, FactVersionRow, SentenceRow
from colmlm.kb.texts.searched import MOST_CHARACTERS, cut_into_parts, searched_sentences, searched_words

AT_ONCE = 2_000  # sentences that are written by one statement
FETCHED = 200  # texts

_GIVEN = (
    b"unnest(%s::bigint[], %s::bigint[], %s::integer[], %s::integer[], %s::integer[], %s::integer[], %s::integer[],"
    b" %s::integer[], %s::integer[], %s::integer[], %s::text[], %s::text[]) AS given (document_id, fact_id, ordinal,"
    b" span_start, span_end, read_from, own_start, own_end, passage_start, passage_end, led_by, said)"
)
_WRITE = (
    b"INSERT INTO sentence (document_id, fact_id, ordinal, span_start, span_end, read_from, own_start, own_end,"
    b" passage_start, passage_end, led_by, words)"
    b" SELECT document_id, fact_id, ordinal, span_start, span_end, read_from, own_start, own_end, passage_start,"
    b" passage_end, led_by::integer[], to_tsvector('pg_catalog.english', said) FROM " + _GIVEN
)
_COMPARE = (
    b"""
SELECT DISTINCT coalesce(given.document_id, had.document_id), coalesce(given.fact_id, had.fact_id) FROM """
    + _GIVEN
    + b"""
FULL JOIN (
    SELECT * FROM sentence WHERE document_id = ANY(%s::bigint[]) OR fact_id = ANY(%s::bigint[])
) AS had
ON had.ordinal = given.ordinal
    AND coalesce(had.document_id, -had.fact_id) = coalesce(given.document_id, -given.fact_id)
WHERE (had.span_start, had.span_end, had.read_from, had.own_start, had.own_end, had.passage_start, had.passage_end,
    had.led_by, had.words) IS DISTINCT FROM (given.span_start, given.span_end, given.read_from, given.own_start,
    given.own_end, given.passage_start, given.passage_end, given.led_by::integer[],
    to_tsvector('pg_catalog.english', given.said)
)
"""
)


class SearchedText(NamedTuple):
    """A text to find by its words: a document's, or the question and value of a fact without a document."""

    document_id: int | None
    fact_id: int | None
    title: str | None
    text: str


@dataclass(frozen=True, slots=True)
class AstraySentences:
    """The documents and facts whose stored sentences do not match their texts."""

    document_ids: tuple[int, ...] = ()
    fact_ids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.document_ids or self.fact_ids)

    def describe_findings(self) -> tuple[str, ...]:
        """Give one sentence for the documents and one for the facts, with their number and the first ids."""
        found = {"documents": self.document_ids, "facts without a document": self.fact_ids}
        return tuple(
            f"{len(ids)} {what} that are not found by the words they say: {list(ids[:10])}"
            for what, ids in found.items()
            if ids
        )


def write_sentences(session: Session, texts: Iterable[SearchedText]) -> None:
    """Store the sentences of these texts, which must have none stored."""
    connection, rows = connection_of(session), _rows(texts)
    while some := list(islice(rows, AT_ONCE)):
        connection.execute(_WRITE, _arrays(some))


def write_document_sentences(session: Session, document_ids: Collection[int]) -> None:
    """Write the sentences of these documents, which have none now; only current documents get any."""
    write_sentences(
        session, _read(session, _in_batches(_DOCUMENTS.where(DocumentRow.id == func.any(list(document_ids)))))
    )


def write_fact_sentences(session: Session, fact_ids: Collection[int]) -> None:
    """Write the sentences of these facts, which have none now; only live facts without a document get any."""
    write_sentences(session, _read(session, _FACTS.where(FactRow.id == func.any(list(fact_ids)))))


def write_all_sentences(session: Session) -> None:
    """Write the sentences of a base that has none."""
    write_sentences(session, _every(session))


def merge_new_words(session: Session) -> None:
    """Merge new words into the text-search indexes, so that searches need not scan them one by one.

    An index that this database role does not own is left to PostgreSQL's vacuum.
    """
    session.execute(_SETTLE)


def find_astray_sentences(session: Session) -> AstraySentences:
    """Find documents and facts whose stored sentences differ from those of their texts now. Changes nothing."""
    documents = {document_id for document_id in session.scalars(_OF_REPLACED) if document_id}
    facts = {fact_id for fact_id in session.scalars(_OF_GONE) if fact_id}
    connection, texts = connection_of(session), _every(session)
    while some := list(islice(texts, FETCHED)):
        ids = [one.document_id for one in some], [one.fact_id for one in some]
        for document_id, fact_id in connection.execute(_COMPARE, (*_arrays(_rows(some)), *ids)):
            of_kind, astray = (documents, document_id) if fact_id is None else (facts, fact_id)
            of_kind.add(astray)
    return AstraySentences(tuple(sorted(documents)), tuple(sorted(facts)))


def mend_sentences(session: Session, astray: AstraySentences) -> None:
    """Rewrite the sentences of these documents and facts. No text may change meanwhile."""
    documents, facts = list(astray.document_ids), list(astray.fact_ids)
    for column, ids in ((SentenceRow.document_id, documents), (SentenceRow.fact_id, facts)):
        session.execute(delete(SentenceRow).where(column == func.any(ids)))
    write_document_sentences(session, documents)
    write_fact_sentences(session, facts)


_SETTLE = text("""
SELECT gin_clean_pending_list(oid) FROM pg_class
WHERE oid = ANY('{sentence_words_idx,fact_question_words_idx,fact_version_value_words_idx}'::regclass[])
    AND pg_has_role(relowner, 'USAGE')
""")
_DOCUMENTS = select(DocumentRow.id, null(), DocumentRow.title, DocumentRow.text).where(
    DocumentRow.replaced_seq.is_(None)
)
_FACTS = (
    select(null(), FactRow.id, null(), FactRow.question.concat(" ").concat(FactVersionRow.value))
    .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
    .where(FactRow.document_id.is_(None), FactVersionRow.to_seq.is_(None))
)
_LIVE = exists().where(FactVersionRow.fact_id == FactRow.id, FactVersionRow.to_seq.is_(None))
_OF_REPLACED = (
    select(SentenceRow.document_id)
    .join(DocumentRow, DocumentRow.id == SentenceRow.document_id)
    .where(DocumentRow.replaced_seq.is_not(None))
    .distinct()
)
_OF_GONE = (
    select(SentenceRow.fact_id)
    .join(FactRow, FactRow.id == SentenceRow.fact_id)
    .where(FactRow.document_id.is_not(None) | ~_LIVE)
    .distinct()
)


def _in_batches(statement: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return statement.execution_options(yield_per=FETCHED)


def _read(session: Session, statement: Select[*tuple[Any, ...]]) -> Iterator[SearchedText]:
    return (SearchedText(*row) for row in session.execute(statement))


def _every(session: Session) -> Iterator[SearchedText]:
    """Read every text that has sentences: of current documents, and of live facts without a document."""
    yield from _read(session, _in_batches(_DOCUMENTS))
    yield from _read(session, _in_batches(_FACTS))


_Row = tuple[int | str | None, ...]


def _rows(texts: Iterable[SearchedText]) -> Iterator[_Row]:
    for document_id, fact_id, title, said in texts:
        led = searched_words((title or "")[:MOST_CHARACTERS])
        if document_id is None:
            for ordinal, (start, end) in enumerate(cut_into_parts(said, 0, len(said))):
                words = searched_words(said[start:end])
                yield None, fact_id, ordinal, start, end, None, None, None, None, None, None, f"{led} {words}"
            continue
        for ordinal, one in enumerate(searched_sentences(said)):
            leading = [said[first:last] for first, last in one.led_by if last <= one.start]
            words = " ".join(map(searched_words, (*leading, said[one.start : one.end])))
            # Of the lines that lead it a reader is told those that it does not read anyhow.
            told = ",".join(f"{first},{last}" for first, last in one.led_by if last <= one.read_from)
            yield (
                document_id, None, ordinal, one.start, one.end, one.read_from, *one.own, *one.passage,
                f"{{{told}}}", f"{led} {words}",
            )  # fmt: skip


def _arrays(rows: Iterable[_Row]) -> list[str]:
    """Give the columns of these rows as array literals of PostgreSQL. Words need no escapes: see `searched_words`."""
    *numbers, led_by, said = list(zip(*rows, strict=True)) or [()] * 12
    columns = [",".join("NULL" if n is None else str(n) for n in column) for column in numbers]
    quoted = (",".join("NULL" if one is None else f'"{one}"' for one in column) for column in (led_by, said))
    return [f"{{{column}}}" for column in (*columns, *quoted)]
