"""Whatever column of whatever table says a fact: an erasure redacts it or names it in what is left."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from colmlm.kb.evidence.records import NewFeedback
from colmlm.kb.facts.records import Mentioned
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.removal.erase import Erasure, erase_facts, load_targets
from colmlm.kb.removal.purge import TABLES
from colmlm.kb.removal.records import Mentions
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ERASED_BY_REDACTION, ERASURE, LEFT_BUT_NAMED, TableRow
from tests.fakes import FakeEncoder
from tests.kb.corpora import fact_id
from tests.kb.full import fill

WORDS = "Cusco"  # what the fact says that is erased
FOREIGN = {  # tables that are not ours, and why none of their texts is content
    "alembic_version": "the number of the last migration",
    "procrastinate_events": "what became of a task",
    "procrastinate_jobs": "names of tasks, and ids of jobs",
    "procrastinate_periodic_defers": "names of tasks",
}
_JOB = text("""
INSERT INTO job (kind, arguments, actor, state, message, result, error, finished_at)
VALUES ('ingest', '{}', 'ann', 'succeeded', 'm', '{}', '{}', now())
""")


class _Column(NamedTuple):
    table: str
    name: str
    type: str


_COLUMNS = text("""
SELECT c.table_name, c.column_name, c.udt_name FROM information_schema.columns c
JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.udt_name IN ('text', 'varchar', '_text', 'jsonb')
ORDER BY 1, 2
""")
_SAYING = {
    "text": "coalesce({0}, '') || ' They said Cusco there.'",
    "varchar": "coalesce({0}, '') || ' They said Cusco there.'",
    "_text": "{0} || '{{Cusco}}'::text[]",
    "jsonb": """CASE WHEN jsonb_typeof({0}) = 'object' OR {0} IS NULL
                THEN coalesce({0}, '{{}}') || '{{"said": ["in Cusco", {{"deep": "Cusco."}}]}}' ELSE {0} END""",
}


def _searched() -> set[tuple[str, str]]:
    """Gives the columns that an erasure redacts or names, as the tables declare them."""
    tables = TableRow.metadata.tables.values()
    return {
        (t.name, c.name)
        for t in tables
        for c in t.c
        if c.info.get(ERASURE) in (ERASED_BY_REDACTION, LEFT_BUT_NAMED)
    }


def _treatment(table: str, column: str) -> str:
    return str(TableRow.metadata.tables[table].c[column].info[ERASURE])


def _write_everywhere(connection: Connection) -> set[tuple[str, str]]:
    """Says the fact in each column that takes a text, and gives those that took it."""
    said = set()
    for column in map(_Column._make, connection.execute(_COLUMNS).all()):
        if (column.table, column.name) not in _searched():
            continue
        value = _SAYING[column.type].format(f'"{column.name}"')
        but_its_own = f" WHERE value <> '{WORDS}'" if column.table == "fact_version" else ""
        try:
            with connection.begin_nested():
                connection.execute(text(f'UPDATE {column.table} SET "{column.name}" = {value}{but_its_own}'))
        except DBAPIError:
            continue  # one of a few known words, a name that another table refers to, or the log
        said.add((column.table, column.name))
    return said


def _saying(connection: Connection) -> dict[tuple[str, str], int]:
    """Counts the rows that say the fact, by column, in every table there is."""
    found = {}
    for column in map(_Column._make, connection.execute(_COLUMNS).all()):
        where = f'SELECT count(*) FROM {column.table} WHERE "{column.name}"::text LIKE :said'
        if number := connection.scalar(text(where), {"said": f"%{WORDS}%"}):
            found[column.table, column.name] = number
    return found


def _unnamed(connection: Connection, left: Mentions) -> dict[tuple[str, str], int]:
    """Counts the rows that say the fact and are not named in what an erasure left, by column."""
    named = {(one.table, one.column): one.num_rows for one in left.rows}
    listed = {"document": left.titles, "generation": left.generations, "change": left.reasons}
    listed |= dict.fromkeys(("fact", "fact_version", "fact_past"), left.facts)
    texts = {one.document_id for one in left.documents}
    unnamed = {}
    for (table, column), number in _saying(connection).items():
        ids = texts if (table, column) == ("document", "text") else listed.get(table, ())
        if missing := number - max(named.get((table, column), 0), len(ids)):
            unnamed[table, column] = missing
    return {place: missing for place, missing in unnamed.items() if missing > 0}


@pytest.fixture
def said_everywhere(kb: KnowledgeBase, encoder: FakeEncoder) -> set[tuple[str, str]]:
    """The columns that say a fact, which are all that take a text and may hold content."""
    fill(kb, encoder)
    with kb.engine.begin() as connection:
        connection.execute(_JOB)
        return _write_everywhere(connection)


def test_every_column_of_texts_declares_what_an_erasure_does_with_it(kb: KnowledgeBase) -> None:
    tables = TableRow.metadata.tables
    with kb.engine.connect() as connection:
        columns = list(map(_Column._make, connection.execute(_COLUMNS).all()))
    assert {column.table for column in columns} <= {*tables, *FOREIGN}
    ours = [column for column in columns if column.table not in FOREIGN]
    undeclared = [one for one in ours if ERASURE not in tables[one.table].c[one.name].info]
    assert not undeclared, "give each a type of kb.tables.declarative"
    told = {tables[one.table].c[one.name].info[ERASURE] for one in ours} - {
        ERASED_BY_REDACTION,
        LEFT_BUT_NAMED,
    }
    assert all(reason.startswith("never holds content: ") for reason in told)


@pytest.mark.parametrize("mentions", ["same-document", "all", "none"])
def test_every_row_that_says_an_erased_fact_is_redacted_or_named(
    kb: KnowledgeBase, said_everywhere: set[tuple[str, str]], mentions: Mentioned
) -> None:
    logged = {("change", "actor"), ("change", "reason"), ("change", "payload")}
    refers = {("checkpoint", "id"), ("keyset", "checkpoint_id")}
    assert _searched() - said_everywhere <= {*logged, *refers, ("document", "external_id")}
    kb.facts.add("Where is it?", "In Cusco", actor="Cusco", reason="of Cusco")
    left = _erase(kb, mentions)
    with kb.engine.connect() as connection:
        assert _unnamed(connection, left) == {}
        staying = {place for place in _saying(connection) if _treatment(*place) == ERASED_BY_REDACTION}
    if mentions == "all":
        assert {table for table, _ in staying} == {"fact", "fact_version", "fact_past"}, (
            "texts of other facts"
        )
    assert kb.upkeep.fsck().chain_ok


def _erase(kb: KnowledgeBase, mentions: Mentioned) -> Mentions:
    """Erases the fact in the database alone, since what is said of files is read there, and gives what is left."""
    with kb.sessions.begin() as session:
        targets, _ = load_targets(session, [fact_id(kb, WORDS)])
        done = erase_facts(session, [targets[0].fact_id], "tester", "request", mentions=mentions)
    return Erasure(kb).with_left_mentions(done, targets).left


def test_every_table_that_an_erasure_redacts_is_rewritten_at_level_three(
    said_everywhere: set[tuple[str, str]],
) -> None:
    redacted = {
        table for table, column in said_everywhere if _treatment(table, column) == ERASED_BY_REDACTION
    }
    assert redacted <= set(TABLES)


def test_thumbs_of_people_whose_names_are_redacted_stay_apart(
    kb: KnowledgeBase, encoder: FakeEncoder
) -> None:
    fill(kb, encoder)
    for person in ("Cusco", "CUSCO"):
        kb.outputs.give_feedback(1, NewFeedback("down"), actor="ann", on_behalf_of=person)
    Erasure(kb).erase([fact_id(kb, WORDS)], actor="tester", reason="request")
    thumbs = kb.outputs.trace(1).feedback
    assert len({one.on_behalf_of for one in thumbs}) == 2
    assert all((one.on_behalf_of or "").startswith(MARK * 5) for one in thumbs)
