"""Measures whether facts and their versions would be served better in tables that are cut by ranges of ids.

The same rows are put into tables as they are, and into tables of as many parts as asked for, with the same
indexes. What lookups, edits, an ingest and upkeep ask of them is timed in turns, so that other load
affects both alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import psycopg
import typer

from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, print_table
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.copying import joined
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.durations import milliseconds, seconds_of
from colmlm.lab.bench.empty_base import own_folder
from colmlm.lab.bench.machine import machine

PARTITIONS_EXAMPLES = examples("colmlm bench partitions --rows 3000000 --parts 16 --json")
ASKED, WARM_UP, CANDIDATES = 2_000, 100, 10
EDITED_SHARE = 100  # one fact in so many is corrected before the tables are vacuumed

_TABLES = {"fact": "id", "fact_version": "fact_id"}
_PARTED = """
CREATE TABLE parted.{table} (LIKE public.{table} INCLUDING ALL) PARTITION BY RANGE ({key})
"""
_SOUGHT = """
SELECT f.id, v.version, v.value, f.review FROM unnest(%s::bigint[]) AS candidate (id)
CROSS JOIN LATERAL (SELECT id, review FROM {schema}.fact WHERE id = candidate.id LIMIT 1) AS f
LEFT JOIN LATERAL (
    SELECT version, value FROM {schema}.fact_version WHERE fact_id = f.id AND to_seq IS NULL LIMIT 1
) AS v ON true
"""
_ENDED = "UPDATE {schema}.fact_version SET to_seq = 2 WHERE fact_id = ANY(%s::bigint[]) AND to_seq IS NULL"
_SIZE = b"""
SELECT sum(pg_total_relation_size(oid)) FROM pg_class
WHERE relkind = 'r' AND relname ~ '^fact(_version)?(_[0-9]+)?$' AND relnamespace = %s::regnamespace
"""
_WORDS = """
SELECT fact_id FROM {schema}.fact_version
WHERE to_seq IS NULL AND words_of(value) @@ ('value & ' || %s)::tsquery LIMIT 50
"""
_COUNTED = "SELECT count(*) FROM {schema}.fact WHERE deleted_seq IS NULL"


@dataclass(frozen=True, slots=True)
class PartFigures:
    """What one form of the tables costs.

    `seek` is what a lookup asks of ten candidates, `words` what a search of values asks, and `edit` ends one version.
    """

    form: str
    rows: int
    copy_rows_per_s: float
    seek_p50_ms: float
    seek_p99_ms: float
    first_seek_ms: float
    words_p50_ms: float
    words_p99_ms: float
    edit_p50_ms: float
    edit_p99_ms: float
    count_seconds: float
    vacuum_seconds: float
    megabytes: float


def partitions(
    rows: Annotated[
        int, typer.Option("--rows", min=10_000, help="How many facts, and as many versions.")
    ] = 1_000_000,
    parts: Annotated[
        int, typer.Option("--parts", min=2, help="Into how many parts the tables are cut.")
    ] = 16,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory", exists=True, file_okay=False, help="Where to work. Default: a temporary one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure facts in tables of one piece beside tables that are cut by ranges of ids."""
    with own_folder(directory) as home:
        figures = measure(Settings(home=home, actor="bench"), rows, parts)
    if as_json:
        print_json({"figures": [asdict(one) for one in figures], "parts": parts, "machine": machine()})
        return
    whole, cut = map(asdict, figures)
    print_table(("what", "whole", "cut"), [(name, whole[name], cut[name]) for name in whole])


def measure(settings: Settings, rows: int, parts: int) -> list[PartFigures]:
    """Fills both forms in a base of its own, and times them."""
    forms = ("public", "parted")
    with (
        KnowledgeBase.open(settings) as kb,
        database.statement_on(kb.engine) as connection,
        database.statement_on(kb.reader) as reader,  # plans as lookups do
    ):
        connection.execute(
            "SET session_replication_role = replica"
        )  # as an ingest has it, without foreign keys
        _cut(connection, rows, parts)
        copied = {form: _filled(connection, form, rows) for form in forms}
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
        sought = {form: _seek(reader, form) for form in forms}
        first = {form: seconds_of(partial(sought[form], list(range(1, CANDIDATES + 1)))) for form in forms}
        seeks = _in_turns(sought, rows, CANDIDATES)
        words = _in_turns({form: partial(_search, connection, form) for form in forms}, rows, 1)
        edits = _in_turns({form: partial(_end, connection, form) for form in forms}, rows, 1)
        counted = {form: seconds_of(partial(connection.execute, _in(_COUNTED, form))) for form in forms}
        vacuumed = {form: _vacuumed(connection, form, rows) for form in forms}
        return [
            PartFigures(
                "whole" if form == "public" else f"{parts} parts",
                rows,
                2 * rows / copied[form],
                milliseconds(seeks[form], 50),
                milliseconds(seeks[form], 99),
                1000 * first[form],
                milliseconds(words[form], 50),
                milliseconds(words[form], 99),
                milliseconds(edits[form], 50),
                milliseconds(edits[form], 99),
                counted[form],
                vacuumed[form],
                _megabytes(connection, form),
            )
            for form in forms
        ]


def _in(statement: str, schema: str) -> bytes:
    return statement.format(schema=schema).encode()


def _cut(connection: psycopg.Connection, rows: int, parts: int) -> None:
    """Makes the tables of parts, each for an equal range of ids."""
    connection.execute("CREATE SCHEMA parted")
    size = -(-rows // parts)
    for table, key in _TABLES.items():
        connection.execute(_PARTED.format(table=table, key=key).encode())
        for n in range(parts):
            bounds = f"FROM ({n * size + 1}) TO ({(n + 1) * size + 1})"
            part = f"CREATE TABLE parted.{table}_{n} PARTITION OF parted.{table} FOR VALUES {bounds}"
            connection.execute(part.encode())


def _filled(connection: psycopg.Connection, schema: str, rows: int) -> float:
    """Copies the rows into the tables of a schema; gives the seconds."""
    note(f"filling {schema}")
    lines = {
        "fact (id, ordinal, question, created_seq)": (f"{n}\t0\tQ {n}?\t1\n" for n in range(1, rows + 1)),
        "fact_version (fact_id, version, value, from_seq)": (
            f"{n}\t1\tvalue {n}\t1\n" for n in range(1, rows + 1)
        ),
    }
    started = time.perf_counter()
    for table, of_table in lines.items():
        _copied(connection, f"COPY {schema}.{table} FROM STDIN", joined(of_table))
    return time.perf_counter() - started


def _copied(connection: psycopg.Connection, statement: str, blocks: Iterator[str]) -> None:
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for block in blocks:
            copy.write(block)


def _seek(connection: psycopg.Connection, schema: str) -> partial[object]:
    statement = _in(_SOUGHT, schema)

    def ask(ids: list[int]) -> object:
        return connection.execute(statement, (database.id_array(ids),), prepare=True).fetchall()

    return partial(ask)


def _end(connection: psycopg.Connection, schema: str, ids: list[int]) -> object:
    return connection.execute(_in(_ENDED, schema), (database.id_array(ids),), prepare=True)


def _search(connection: psycopg.Connection, schema: str, ids: list[int]) -> object:
    return connection.execute(_in(_WORDS, schema), (str(ids[0]),), prepare=True).fetchall()


def _in_turns(work: dict[str, partial[object]], rows: int, size: int) -> dict[str, list[float]]:
    """Runs each form's work on the same random ids, one after the other; gives the seconds of each."""
    times: dict[str, list[float]] = {form: [] for form in work}
    for drawn in np.random.default_rng(0).integers(1, rows + 1, size=(ASKED, size)).tolist():
        for form, run in work.items():
            times[form].append(seconds_of(partial(run, drawn)))
    return {form: seconds[WARM_UP:] for form, seconds in times.items()}


def _vacuumed(connection: psycopg.Connection, schema: str, rows: int) -> float:
    """Corrects some versions all over the table, and gives the seconds of a vacuum after that."""
    connection.execute(_in(_ENDED, schema), (database.id_array(range(1, rows + 1, EDITED_SHARE)),))
    return seconds_of(partial(connection.execute, f"VACUUM {schema}.fact_version".encode()))


def _megabytes(connection: psycopg.Connection, schema: str) -> float:
    (size,) = connection.execute(_SIZE, (schema,)).fetchone() or (0,)
    return float(size) / 1e6
