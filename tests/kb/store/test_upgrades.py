"""A migration leaves the release before it working: whatever that wrote and read, it can still write and read.

So that servers are replaced one by one (docs/production/backup.md). Held by the schema itself, migration by migration.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from sqlalchemy import URL, Connection, create_engine, text

from colmlm.kb.store import database
from colmlm.lab.faults.migration import write_later_release

# Where a migration breaks the rule, and why it may.
EXEMPT = {
    "0038": "It takes one more state, and binds rows alone that the release before cannot write: webhooks on corpora, "
    "which that release must not make active, since it would send them all changes"
}
FIRST, *REVISIONS = reversed(database.schema_revisions())

_COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'
       AND is_generated = 'NEVER' AS needed
FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
"""
_CHECKS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f', 'u')
"""


@dataclass(frozen=True)
class Schema:
    """By (table, column): its type, and whether an INSERT has to name it. By (table, name): what a constraint says."""

    columns: dict[tuple[str, str], tuple[str, bool]]
    constraints: dict[tuple[str, str], str]

    @classmethod
    def of(cls, connection: Connection) -> Schema:
        columns = {(t, c): (kind, needed) for t, c, kind, needed in connection.execute(text(_COLUMNS))}
        return cls(columns, {(t, n): said for t, n, said in connection.execute(text(_CHECKS))})

    @property
    def tables(self) -> set[str]:
        return {table for table, _ in self.columns}


@pytest.fixture
def connection(server: URL) -> Iterator[Connection]:
    """A connection to a database with nothing in it."""
    administrator = create_engine(server, isolation_level="AUTOCOMMIT")
    name = f"upgrade_{uuid.uuid4().hex}"
    with administrator.connect() as admin:
        admin.execute(text(f"CREATE DATABASE {name}"))
        engine = create_engine(server.set(database=name))
        with engine.begin() as opened:
            yield opened
        engine.dispose()
        admin.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    administrator.dispose()


def upgrade(connection: Connection, revision: str, later: Path | None = None) -> Schema:
    database.upgrade_on(connection, later, revision)
    return Schema.of(connection)


def breaks(before: Schema, after: Schema) -> list[str]:
    """What a program written for `before` can no longer do on `after`."""
    gone = [f"{t}.{c} is gone" for t, c in before.columns if (t, c) not in after.columns]
    changed = [
        f"{t}.{c} was {kind} and is {after.columns[t, c][0]}"
        for (t, c), (kind, _) in before.columns.items()
        if (t, c) in after.columns and after.columns[t, c][0] != kind
    ]
    needed = [
        f"{t}.{c} has to be given"
        for (t, c), (_, is_needed) in after.columns.items()
        if is_needed and t in before.tables and not before.columns.get((t, c), ("", False))[1]
    ]
    narrowed = [
        f"{t}: {name} {said}"
        for (t, name), said in after.constraints.items()
        if t in before.tables
        and before.constraints.get((t, name)) != said
        and not _is_of_new(t, said, before)
    ]
    return [*gone, *changed, *needed, *narrowed]


def _is_of_new(table: str, said: str, before: Schema) -> bool:
    """Whether a constraint speaks of columns alone that the program before never sets."""
    named = set(re.findall(r"\b[a-z_]+\b", said))
    return not any((table, word) in before.columns for word in named)


def rewrites(statements: str) -> list[str]:
    """The statements that rewrite rows which are there already."""
    return re.findall(
        r"^\s*(?:UPDATE|DELETE FROM|TRUNCATE)\b.*", statements, flags=re.MULTILINE | re.IGNORECASE
    )


def test_what_the_release_before_wrote_it_can_still_write(connection: Connection, tmp_path: Path) -> None:
    made_up = write_later_release(later := tmp_path / "later")
    before = upgrade(connection, FIRST)
    found: dict[str, list[str]] = {}
    for revision in (*REVISIONS, *made_up):
        after = upgrade(connection, revision, later)
        assert after != before
        if broken := breaks(before, after):
            found[revision] = broken
        before = after
    assert set(found) - set(EXEMPT) == set(), found


def test_no_migration_rewrites_rows_that_the_release_before_reads() -> None:
    for revision in set(REVISIONS) - set(EXEMPT):
        (module,) = (database.MIGRATIONS / "versions").glob(f"{revision}_*.py")
        assert rewrites(import_module(f"colmlm.migrations.versions.{module.stem}").UPGRADE) == [], revision
    for statement in ("update fact SET ordinal = 0", "  DELETE FROM fact", "TRUNCATE fact"):
        assert rewrites(f"CREATE TABLE extra (id bigint);\n{statement};") != []
    assert rewrites("CREATE TRIGGER extra BEFORE UPDATE OR DELETE OR TRUNCATE ON fact") == []


def test_the_test_sees_what_would_break_it(connection: Connection, subtests: pytest.Subtests) -> None:
    before = upgrade(connection, "head")
    for statement in (
        "ALTER TABLE fact DROP COLUMN answer",
        "ALTER TABLE fact RENAME COLUMN answer TO reply",
        "ALTER TABLE fact ALTER COLUMN ordinal TYPE bigint",
        "ALTER TABLE fact ADD COLUMN owner text NOT NULL",
        "ALTER TABLE document ALTER COLUMN title SET NOT NULL",
        "ALTER TABLE fact ADD CONSTRAINT short CHECK (length(question) < 100)",
    ):
        with subtests.test(statement=statement):
            savepoint = connection.begin_nested()
            connection.execute(text(statement))
            assert breaks(before, Schema.of(connection)) != []
            savepoint.rollback()
            assert Schema.of(connection) == before


def test_the_test_lets_additions_pass(connection: Connection) -> None:
    before = upgrade(connection, "head")
    connection.execute(
        text("ALTER TABLE fact ADD COLUMN owner text, ADD COLUMN rank integer NOT NULL DEFAULT 0")
    )
    connection.execute(text("CREATE TABLE extra (id bigint PRIMARY KEY, note text NOT NULL)"))
    assert breaks(before, Schema.of(connection)) == []
