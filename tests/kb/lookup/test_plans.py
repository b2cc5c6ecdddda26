"""The statements of a lookup seek every row by its id, however the base came to be and whatever is known of it."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from colmlm.kb.lookup.searcher import _DECIDE, _DECIDE_ONE
from colmlm.kb.lookup.touched import _BETWEEN, _GONE, _LAST, _OF_FACTS, _PASSED
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from tests.fakes import FakeEncoder
from tests.kb.corpora import ingest, numbered

GIVEN = {
    "keyset_id": 1,
    "key_ids": [1, 2],
    "accepted_only": False,
    "corpora": ["lands"],
    "after": 1,
    "ids": [1, 2],
    "first": 1,
    "last": 9,
}
STATEMENTS = {
    "decide": _DECIDE,
    "decide_one": _DECIDE_ONE,
    "passed": _PASSED,
    "of_facts": _OF_FACTS,
    "between": _BETWEEN,
    "gone": _GONE,
    "last": _LAST,
}
READS_ALL = re.compile(
    r"Seq Scan on (?:fact|fact_version|fact_key\w*|change|tombstone)\b|Hash Join|Merge Join|Sort|BitmapAnd"
)


@pytest.mark.parametrize("state", ["never analysed", "analysed", "analysed while it was small"])
def test_no_statement_reads_a_table_whole(kb: KnowledgeBase, encoder: FakeEncoder, state: str) -> None:
    def plans(connection: psycopg.Connection) -> dict[str, str]:
        for name, statement in STATEMENTS.items():
            _prepare(connection, name, statement)
            for _ in range(6):
                connection.execute(_execute(name, statement))
        if state == "analysed while it was small":
            ingest(kb, *numbered(300))
            kb.keysets.rekey(encoder)
        explained = (
            (name, b"EXPLAIN " + _execute(name, statement)) for name, statement in STATEMENTS.items()
        )
        return {name: "\n".join(line for (line,) in connection.execute(said)) for name, said in explained}

    ingest(kb, *numbered(10 if state == "analysed while it was small" else 300))
    kb.keysets.rekey(encoder)
    if state != "never analysed":
        with kb.engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE")
    found = database.read_from(kb.reader, plans)
    assert {name: plan for name, plan in found.items() if READS_ALL.search(plan)} == {}


def _named(statement: str) -> list[str]:
    """Gives the parameters of a statement in the order in which they come."""
    return list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))


def _prepare(connection: psycopg.Connection, name: str, statement: str) -> None:
    for number, parameter in enumerate(_named(statement), start=1):
        statement = statement.replace(f"%({parameter})s", f"${number}")
    connection.execute(f"PREPARE {name} AS {statement}".encode())


def _execute(name: str, statement: str) -> bytes:
    given = ", ".join(_literal(GIVEN[parameter]) for parameter in _named(statement))
    return f"EXECUTE {name}({given})".encode()


def _literal(value: Any) -> str:
    return f"'{{{','.join(map(str, value))}}}'" if isinstance(value, list) else str(value)
