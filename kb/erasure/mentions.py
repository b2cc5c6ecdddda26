"""Mentions: other texts in the base that say what a fact said. Session first; nothing here changes anything.

Every column of texts is searched, except those that the tables declare as never holding content. So what an erasure
leaves is named, whether it was not to be redacted or could not be.
They are looked for while the texts of the fact are still in memory: before it is erased, or right after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, cast, func, inspect, or_, select
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Session

from colmlm.kb.erasure.records import LeftRows, Mention, Mentions, Stretch
from colmlm.kb.facts.redaction import ErasureTarget
from colmlm.kb.tables import (
    NAMED,
    REDACTED,
    ChangeRow,
    DocumentRow,
    FactPastRow,
    FactRow,
    FactVersionRow,
    GenerationRow,
    TableRow,
    columns_of,
)
from colmlm.kb.texts.wording import Phrases, may_say

MOST = 500  # mentions of each kind that are listed
_OF_THEIR_OWN = {ChangeRow, DocumentRow, FactPastRow, FactRow, FactVersionRow, GenerationRow}


def look(session: Session, targets: Sequence[ErasureTarget]) -> Mentions:
    """Finds what else says the values of these facts; among reasons also what says their questions and answers."""
    values = sorted({value for target in targets for value in target.values})
    if not values:
        return Mentions()
    said, strings = _Search(session, values), sorted({one for target in targets for one in target.strings})
    ids = [target.fact_id for target in targets]
    facts = [*_searched(FactVersionRow), *_searched(FactRow)]
    others = (
        select(FactRow.id, *facts)
        .join(FactVersionRow, FactVersionRow.fact_id == FactRow.id)
        .where(FactRow.erased_seq.is_(None), FactRow.id != func.all(ids))
    )
    past = _searched(FactPastRow)
    pasts = select(FactPastRow.fact_id, *past).where(FactPastRow.fact_id != func.all(ids))
    about = [column for column in _searched(DocumentRow) if column.name != "text"]
    return Mentions(
        documents=tuple(_documents(session, targets, values, said.phrases)),
        titles=said.ids(select(DocumentRow.id, *about), about),
        facts=tuple(sorted({*said.ids(others, facts), *said.ids(pasts, past)})[:MOST]),
        generations=said.ids_of(GenerationRow),
        reasons=_Search(session, strings).ids_of(ChangeRow),
        rows=tuple(found for row in sorted_rows() for found in said.rows(row)),
    )


def named_texts(session: Session) -> Iterator[str]:
    """Read every text that an erasure leaves and names, without those of documents."""
    for row in (one.class_ for one in TableRow.registry.mappers):
        if row is not DocumentRow and (columns := columns_of(row, NAMED)):
            yield from filter(
                None, session.scalars(select(_as_one(columns)).execution_options(yield_per=1000))
            )


def sorted_rows() -> list[type[TableRow]]:
    """Give the tables with texts that have no part of their own in `Mentions`, in the order of their names."""
    mapped = (one.class_ for one in TableRow.registry.mappers)
    return sorted(
        (row for row in mapped if _searched(row) and row not in _OF_THEIR_OWN),
        key=lambda row: row.__tablename__,
    )


def _searched(row: type[TableRow]) -> list[Any]:
    return columns_of(row, REDACTED, NAMED)


class _Search:
    """Searches columns for texts."""

    def __init__(self, session: Session, texts: Sequence[str]) -> None:
        self.session, self.texts, self.phrases = session, texts, Phrases(texts)

    def ids_of(self, row: type[TableRow]) -> tuple[int, ...]:
        """Find the rows of a table that say one of the texts, by their primary key."""
        columns = _searched(row)
        return self.ids(select(*inspect(row).primary_key, *columns), columns)

    def ids(self, statement: Select[Any], columns: Sequence[Any]) -> tuple[int, ...]:
        """Find the rows of a statement that say one of the texts, by its first column."""
        return tuple(sorted({found[0] for found, _ in self._saying(statement, columns)})[:MOST])

    def rows(self, row: type[TableRow]) -> Iterator[LeftRows]:
        """Find the rows of a table that say one of the texts, by column."""
        key, columns = inspect(row).primary_key, _searched(row)
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
        rows = statement.add_columns(_as_one(columns).label("as_one")).offset(0).subquery()
        said = rows.c.as_one
        may = may_say(said, self.texts)
        if any(
            isinstance(column.type, JSONB) for column in columns
        ):  # where a line's end is a backslash and an n
            may = or_(may, func.strpos(said, "\\") > 0)
        first = len(rows.c) - 1 - len(columns)
        for row in self.session.execute(select(rows).where(may).execution_options(yield_per=1000)):
            values = zip(columns, row[first:-1], strict=True)
            if names := [column.name for column, value in values if self._says(value)]:
                yield row, names

    def _says(self, value: Any) -> bool:
        return any(self.phrases.spans(one) for one in _strings(value))


def _as_one(columns: Sequence[Any]) -> ColumnElement[str]:
    return func.concat_ws("\n", *map(_as_text, columns))


def _as_text(column: Any) -> ColumnElement[str]:
    if isinstance(column.type, ARRAY):
        return func.array_to_string(column, "\n")
    return cast(column, Text) if isinstance(column.type, JSONB) else column


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


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
                row.id, (row.corpus, row.external_id) in sources, tuple(Stretch(*span) for span in spans)
            )
