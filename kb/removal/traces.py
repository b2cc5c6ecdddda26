"""Traces: byte strings that only a given fact puts into files, so that a file which holds one still holds the fact.

They are made before an erasure and contain the erased texts. A text becomes a trace only where it is long enough to
identify its fact; one that another fact or document says too proves nothing and is marked as shared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Select, Text, cast, func, inspect, or_, select, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, describe_misread
from colmlm.kb.facts.records import Mentioned
from colmlm.kb.facts.redaction import ErasureTarget, blank_out, spans_apart, strings_of
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.removal.records import LeftRows, Mention, Mentions, Stretch
from colmlm.kb.removal.scan import LEAST, Matcher
from colmlm.kb.tables import (
    ERASED_BY_REDACTION,
    LEFT_BUT_NAMED,
    AttributionRow,
    ChangeRow,
    DocumentRow,
    FactKeyRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    GenerationRow,
    TableRow,
    columns_of,
)
from colmlm.kb.texts.searched import searched_words
from colmlm.kb.texts.wording import Phrases, Span, may_say

AROUND = 16  # characters to either side of a value
DISTINCTIVE = 12  # bytes that a text needs to identify its fact without the characters around it
KEY_BYTES = 64  # the first bytes of a key are enough to tell it from other keys
FORMAT = 1
TEXTS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Trace:
    """A byte string that a fact puts into files. It is `shared` where something that is not erased holds it too.

    `kind` is "context" (the value in its document), "output" (the value in an output), "text" (the value, question or
    answer alone), "word" (the stem of a value that is one word, as sentences are found by it) or "key".
    """

    fact_id: int
    kind: str
    needle: bytes
    shared: bool = False


def make_traces(
    session: Session, targets: Sequence[ErasureTarget], mentions: Mentioned = "same-document"
) -> tuple[Trace, ...]:
    """Make all traces of these facts, each byte string once, for an erasure that redacts these mentions."""
    made = (*_of_words(session, targets), *_of_facts(targets, mentions), *_of_outputs(session, targets))
    texts = {trace.needle: trace for trace in made}
    long_enough = [trace for trace in texts.values() if len(trace.needle) >= LEAST]
    shared = _shared_needles(session, targets, mentions, [trace.needle for trace in long_enough])
    marked = [replace(trace, shared=trace.shared or n in shared) for n, trace in enumerate(long_enough)]
    return (*marked, *_of_keys(session, targets))


def _of_facts(targets: Sequence[ErasureTarget], mentions: Mentioned) -> Iterator[Trace]:
    for target in targets:
        for start, end in _mentions([target], target) if mentions != "none" else ():
            # As bytes these are other texts where the document spells the value otherwise.
            yield Trace(
                target.fact_id, "context", target.text[max(0, start - AROUND) : end + AROUND].encode()
            )
            if len(said := target.text[start:end].encode()) >= DISTINCTIVE:
                yield Trace(target.fact_id, "text", said)
        for state in target.states:
            if state.document_id is not None:
                around = state.text[max(0, state.start - AROUND) : state.end + AROUND]
                yield Trace(target.fact_id, "context", around.encode())
        for string in target.strings:
            if len(string.encode()) >= DISTINCTIVE:
                yield Trace(target.fact_id, "text", string.encode())


def _of_outputs(session: Session, targets: Sequence[ErasureTarget]) -> Iterator[Trace]:
    statement = (
        select(
            AttributionRow.fact_id,
            AttributionRow.output_start,
            AttributionRow.output_end,
            GenerationRow.output,
        )
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .where(AttributionRow.fact_id == func.any([target.fact_id for target in targets]))
    )
    for row in session.execute(statement):
        around = row.output[max(0, row.output_start - AROUND) : row.output_end + AROUND]
        yield Trace(row.fact_id, "output", around.encode())


_STEM = text("SELECT tsvector_to_array(to_tsvector('pg_catalog.english', :word))")
_HAS = text("""
SELECT EXISTS (
    SELECT FROM sentence s LEFT JOIN document d ON d.id = s.document_id
    WHERE s.words @@ CAST(:query AS tsquery) AND s.fact_id IS DISTINCT FROM :fact_id
      AND (d.corpus, d.external_id) IS DISTINCT FROM (:corpus, :external_id)
) OR to_tsvector('pg_catalog.english', :rest) @@ CAST(:query AS tsquery)
""")


def _of_words(session: Session, targets: Sequence[ErasureTarget]) -> Iterator[Trace]:
    """Yield traces of the stems of one-word values. Words of a longer value may stand elsewhere on purpose."""
    for target in targets:
        for value in target.values:
            word = searched_words(value)
            stems = session.scalar(_STEM, {"word": word}) if word and " " not in word else []
            for stem in stems or []:
                if len(stem.encode()) >= DISTINCTIVE:
                    yield Trace(target.fact_id, "word", stem.encode(), _is_elsewhere(session, target, stem))


def _is_elsewhere(session: Session, target: ErasureTarget, stem: str) -> bool:
    """Tell whether an erasure of the fact leaves the stem in a sentence of another document, or in its own document."""
    others = [span for span in target.spans if span != (target.start, target.end)]
    mentioned = spans_apart(Phrases(target.values).spans(target.text), others)
    rest = blank_out(target.text, [(target.start, target.end), *mentioned])
    title = session.scalar(select(DocumentRow.title).where(DocumentRow.id == target.document_id))
    named = {"fact_id": target.fact_id, "corpus": target.corpus, "external_id": target.external_id}
    said = {"rest": searched_words(f"{title or ''} {rest}"), "query": f"'{stem}'"}
    return bool(session.scalar(_HAS, named | said))


def _of_keys(session: Session, targets: Sequence[ErasureTarget]) -> Iterator[Trace]:
    """Yield two traces of each key: as the database stores it, in fp16, and as a flat index does, in fp32."""
    ids = [target.fact_id for target in targets]
    rows = session.execute(
        select(FactKeyRow.fact_id, FactKeyRow.key).where(FactKeyRow.fact_id == func.any(ids))
    ).all()
    starts = {bytes(row.key)[:KEY_BYTES] for row in rows}
    start = func.substr(FactKeyRow.key, 1, KEY_BYTES)
    others = select(start).where(FactKeyRow.fact_id != func.all(ids), start.in_(starts))
    shared = {bytes(theirs) for theirs in session.scalars(others)}
    for row in rows:
        exact = np.frombuffer(row.key, dtype=STORED).astype("<f4")
        is_shared = bytes(row.key)[:KEY_BYTES] in shared
        for needle in (bytes(row.key), exact.tobytes()):
            yield Trace(row.fact_id, "key", needle[:KEY_BYTES], is_shared)


def _shared_needles(
    session: Session, targets: Sequence[ErasureTarget], mentions: Mentioned, needles: list[bytes]
) -> set[int]:
    """Give the positions of the needles, the bytes of traces, that an erasure of these facts leaves in other texts."""
    matcher = Matcher(needles)
    shared: set[int] = set()
    texts = _left_texts(session, targets, mentions)
    # Many texts are joined for one search, as most are short; no text holds the separator.
    while block := "\0".join(islice(texts, TEXTS_AT_ONCE)):
        shared.update(n for n, _ in matcher.find(block.encode()))
    return shared


def mark_shared(session: Session, traces: Sequence[Trace]) -> Iterator[Trace]:
    """Yield the traces, `shared` if a text of the base holds them. Their facts were erased in this transaction."""
    matcher, shared = Matcher([trace.needle for trace in traces]), set[int]()
    for row in (one.class_ for one in TableRow.registry.mappers):
        if columns := columns_of(row, ERASED_BY_REDACTION, LEFT_BUT_NAMED):
            statement = select(as_one_text(columns)).execution_options(yield_per=TEXTS_AT_ONCE)
            for block in session.scalars(statement).partitions():
                shared.update(n for n, _ in matcher.find("\0".join(filter(None, block)).encode()))
    for n, trace in enumerate(traces):
        yield replace(trace, shared=trace.shared or n in shared)


def _left_texts(session: Session, targets: Sequence[ErasureTarget], mentions: Mentioned) -> Iterator[str]:
    """Yield all texts as the erasure leaves them, but no older editions of the documents that it redacts."""
    yield from _of_documents(session, targets, mentions)
    yield from named_texts(session)
    erased = [target.fact_id for target in targets]
    others = (
        select(*columns_of(FactRow, ERASED_BY_REDACTION), *columns_of(FactVersionRow, ERASED_BY_REDACTION))
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .where(FactRow.id != func.all(erased))
    )
    past = select(*columns_of(FactPastRow, ERASED_BY_REDACTION)).where(
        FactPastRow.fact_id != func.all(erased)
    )
    for statement in (others, past):
        for texts in session.execute(statement.execution_options(yield_per=2000)):
            yield from filter(None, texts)


def _of_documents(session: Session, targets: Sequence[ErasureTarget], mentions: Mentioned) -> Iterator[str]:
    """Yield the texts of documents as the erasure leaves them. Mentions in documents of no target are not redacted."""
    spans: dict[int | None, list[Span]] = {}
    for state in (state for target in targets for state in target.states):
        spans.setdefault(state.document_id, []).append((state.start, state.end))
    sources = {(target.corpus, target.external_id) for target in targets}
    mentioned = {target.document_id: _mentions(targets, target) for target in targets if mentions != "none"}
    documents = select(DocumentRow.id, *columns_of(DocumentRow, ERASED_BY_REDACTION, LEFT_BUT_NAMED))
    for row in session.execute(documents.execution_options(yield_per=200)):
        is_own = (row.corpus, row.external_id) in sources
        if row.id in spans or not is_own:
            yield blank_out(row.text, (*spans.get(row.id, ()), *mentioned.get(row.id, ())))
        stays = (LEFT_BUT_NAMED,) if is_own and mentions != "none" else (LEFT_BUT_NAMED, ERASED_BY_REDACTION)
        about = (
            getattr(row, column.name) for column in columns_of(DocumentRow, *stays) if column.name != "text"
        )
        yield from filter(None, about)


def _mentions(targets: Sequence[ErasureTarget], target: ErasureTarget) -> list[Span]:
    """Find where a target's document says values of its targets, apart from the spans of facts."""
    of_document = [other for other in targets if other.document_id == target.document_id]
    values = Phrases(value for other in of_document for value in other.values)
    return spans_apart(values.spans(target.text), target.spans)


def save_traces(traces: Sequence[Trace], path: Path) -> None:
    """Write traces to a new file that only its owner may read, since it holds the erased texts."""
    probes = [
        {"fact_id": trace.fact_id, "kind": trace.kind, "hex": trace.needle.hex(), "shared": trace.shared}
        for trace in traces
    ]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"format": FORMAT, "probes": probes}, file)


def load_traces(path: Path) -> tuple[Trace, ...]:
    """Read the traces of a file. Raises `InvalidValue` where `save_traces` did not write it."""
    try:
        record = json.loads(path.read_text())
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}")
        return tuple(
            Trace(int(p["fact_id"]), str(p["kind"]), bytes.fromhex(p["hex"]), bool(p["shared"]))
            for p in record["probes"]
        )
    except (ValueError, KeyError, TypeError) as error:
        cause = f"{path.name} is not one that `colmlm erase` wrote ({describe_misread(error)})"
        raise InvalidValue("file of traces", cause) from error


# Mentions: other texts in the base that say what a fact said. Session first; nothing here changes anything.
#
# Every column of texts is searched, except those that the tables declare as never holding content. So what an
# erasure leaves is named, whether it was not to be redacted or could not be. They are looked for while the
# texts of the fact are still in memory: before it is erased, or right after.

MOST = 500  # mentions of each kind that are listed
_OF_THEIR_OWN = {ChangeRow, DocumentRow, FactPastRow, FactRow, FactVersionRow, GenerationRow}


def find_mentions(session: Session, targets: Sequence[ErasureTarget]) -> Mentions:
    """Find what else says the values of these facts, in the change log also their questions and answers."""
    values = sorted({value for target in targets for value in target.values})
    if not values:
        return Mentions()
    said, strings = _TextSearch(session, values), sorted(strings_of(targets))
    ids = [target.fact_id for target in targets]
    facts = [*_searched_columns(FactVersionRow), *_searched_columns(FactRow)]
    others = (
        select(FactRow.id, *facts)
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .where(FactRow.erased_seq.is_(None), FactRow.id != func.all(ids))
    )
    past = _searched_columns(FactPastRow)
    pasts = select(FactPastRow.fact_id, *past).where(FactPastRow.fact_id != func.all(ids))
    about = [column for column in _searched_columns(DocumentRow) if column.name != "text"]
    return Mentions(
        documents=tuple(_documents(session, targets, values, said.phrases)),
        titles=said.ids(select(DocumentRow.id, *about), about),
        facts=tuple(sorted({*said.ids(others, facts), *said.ids(pasts, past)})[:MOST]),
        generations=said.ids_of(GenerationRow),
        reasons=_TextSearch(session, strings).ids_of(ChangeRow),
        rows=tuple(found for row in other_tables_with_texts() for found in said.rows(row)),
    )


def named_texts(session: Session) -> Iterator[str]:
    """Yield every text that an erasure leaves and names (`LEFT_BUT_NAMED`), without those of documents."""
    for row in (one.class_ for one in TableRow.registry.mappers):
        if row is not DocumentRow and (columns := columns_of(row, LEFT_BUT_NAMED)):
            yield from filter(
                None, session.scalars(select(as_one_text(columns)).execution_options(yield_per=1000))
            )


def other_tables_with_texts() -> list[type[TableRow]]:
    """Give the tables with texts that have no field of their own in `Mentions`, in the order of their names."""
    mapped = (one.class_ for one in TableRow.registry.mappers)
    return sorted(
        (row for row in mapped if _searched_columns(row) and row not in _OF_THEIR_OWN),
        key=lambda row: row.__tablename__,
    )


def _searched_columns(row: type[TableRow]) -> list[Any]:
    return columns_of(row, ERASED_BY_REDACTION, LEFT_BUT_NAMED)


class _TextSearch:
    """Searches columns of tables for some texts."""

    def __init__(self, session: Session, texts: Sequence[str]) -> None:
        self.session, self.texts, self.phrases = session, texts, Phrases(texts)

    def ids_of(self, row: type[TableRow]) -> tuple[int, ...]:
        """Give the primary keys of rows of a table that say one of the texts."""
        columns = _searched_columns(row)
        return self.ids(select(*inspect(row).primary_key, *columns), columns)

    def ids(self, statement: Select[Any], columns: Sequence[Any]) -> tuple[int, ...]:
        """Give the ids, which are the statement's first column, of rows that say one of the texts."""
        return tuple(sorted({found[0] for found, _ in self._saying(statement, columns)})[:MOST])

    def rows(self, row: type[TableRow]) -> Iterator[LeftRows]:
        """Yield, for each column of a table that says one of the texts, the number of rows and their ids."""
        key, columns = inspect(row).primary_key, _searched_columns(row)
        by_column: dict[str, list[Any]] = {}
        for found, names in self._saying(select(key[0], *columns), columns):
            for name in names:
                by_column.setdefault(name, []).append(found[0])
        is_number = len(key) == 1 and key[0].type.python_type is int
        for name, keys in sorted(by_column.items()):
            ids = tuple(sorted(keys)[:MOST]) if is_number else ()
            yield LeftRows(row.__tablename__, name, len(keys), ids)

    def _saying(self, statement: Select[Any], columns: Sequence[Any]) -> Iterator[tuple[Any, list[str]]]:
        """Yield the rows that say one of the texts, with the names of the columns that do."""
        # Without an offset the server would put the rows' texts together for each part of the condition.
        rows = statement.add_columns(as_one_text(columns).label("as_one")).offset(0).subquery()
        said = rows.c.as_one
        may = may_say(said, self.texts)
        # In JSON a line's end is a backslash and an n.
        if any(isinstance(column.type, JSONB) for column in columns):
            may = or_(may, func.strpos(said, "\\") > 0)
        first = len(rows.c) - 1 - len(columns)
        for row in self.session.execute(select(rows).where(may).execution_options(yield_per=1000)):
            values = zip(columns, row[first:-1], strict=True)
            if names := [column.name for column, value in values if self._says(value)]:
                yield row, names

    def _says(self, value: Any) -> bool:
        return any(self.phrases.spans(one) for one in strings_of_value(value))


def as_one_text(columns: Sequence[Any]) -> ColumnElement[str]:
    """Give an SQL expression that joins the texts of these columns of a row, one a line."""
    return func.concat_ws("\n", *map(_column_as_text, columns))


def _column_as_text(column: Any) -> ColumnElement[str]:
    """Give an SQL expression for the text of a column: JSON as it is written, the items of an array one a line."""
    if isinstance(column.type, ARRAY):
        return func.array_to_string(column, "\n")
    return cast(column, Text) if isinstance(column.type, JSONB) else column


def strings_of_value(value: Any) -> Iterator[str]:
    """Yield the strings of a text, a list or a JSON value, in the order of `kb.facts.redaction.blank_value`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_of_value(item)


def _documents(
    session: Session, targets: Sequence[ErasureTarget], values: Sequence[str], said: Phrases
) -> Iterator[Mention]:
    sources = {(target.corpus, target.external_id) for target in targets}
    own = {target.document_id: (target.start, target.end) for target in targets}
    statement = select(
        DocumentRow.id, DocumentRow.corpus, DocumentRow.external_id, DocumentRow.text
    ).order_by(DocumentRow.id)
    found = 0
    for row in session.execute(
        statement.where(may_say(DocumentRow.text, values)).execution_options(yield_per=200)
    ):
        spans = [span for span in said.spans(row.text) if span != own.get(row.id)]
        if spans and found < MOST:
            found += 1
            yield Mention(
                row.id,
                (row.corpus, row.external_id) in sources,
                tuple(Stretch(*span) for span in spans),
                f"{row.corpus}/{row.external_id}",
            )
