"""Migrates a base of an older release to head, as a child does, and judges the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from alembic.util import CommandError
from psycopg import sql
from sqlalchemy import Connection, Engine, Table, Text, cast, column, select, table, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from colmlm.kb.backup.write import archive_tables
from colmlm.kb.errors import KBError
from colmlm.kb.keys import keysets
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import KeysetRow, SentenceRow, TableRow
from colmlm.lab.crashlab.judge import Violation, unsound
from colmlm.lab.crashlab.target import CrashTarget, is_quiet
from colmlm.lab.crashlab.world import StepJournal, World

Columns = dict[str, list[str]]

FIRST = "0001"  # it has no columns for erasures, so no base with erasures was ever at this revision
_COLUMNS = text("""
SELECT table_name, array_agg(CAST(column_name AS text) ORDER BY ordinal_position) AS columns
FROM information_schema.columns WHERE table_schema = current_schema() GROUP BY table_name
""")
# All tables but the partitions of keys, which are made and dropped with keysets.
_SCHEMA = text("""
SELECT * FROM (
    SELECT table_name || '.' || column_name AS name,
           concat_ws(' ', data_type, is_nullable, column_default, is_identity) AS said
    FROM information_schema.columns WHERE table_schema = current_schema()
    UNION ALL
    SELECT conrelid::regclass || ': ' || conname, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
    UNION ALL
    SELECT tablename || ': ' || indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()
    UNION ALL
    SELECT tgrelid::regclass || ': ' || tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL
    SELECT oid::regprocedure::text, prosrc FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
) AS everything WHERE name !~ '^fact_key_[0-9]'
""")


def migrate(target: CrashTarget) -> None:
    with _engine(target.settings) as engine:
        database.migrate_database(engine)


class Migration:
    """A migration to head that a child had to do in `target`, which this makes a base at `revision`.

    `target` gets the rows of the base `source`, as far as that revision has tables and columns for them.
    """

    def __init__(self, source: Settings, target: CrashTarget, revision: str) -> None:
        self.target, self.revision = target, revision
        with _engine(source) as made, _engine(target.settings) as old:
            database.migrate_database(old, revision)
            with Session(made) as rows, Session(old) as session:
                self.columns = _columns(session)
                if revision != FIRST:
                    _fill(rows, session, self.columns)
                session.commit()

    def judge(
        self, opened: KnowledgeBase, before: World, now: World, journal: StepJournal
    ) -> Iterator[Violation]:
        """Finds fault unless the migration was done wholly or not at all.

        Repeating it must give the base's schema and keep every row.
        """
        with _engine(self.target.settings) as engine:
            if not is_quiet(engine):
                yield Violation("errors", "the database still works for a killed migration")
            yield from self._halfway(database.revision_of(engine), is_acknowledged=bool(journal.acknowledged))
            try:
                database.migrate_database(engine)  # as an operator would
                database.require_head(engine)
            except (SQLAlchemyError, CommandError, KBError) as error:
                yield Violation("errors", f"a migration from {self.revision}, once more: {error}")
                return
            yield from self._differences(opened.engine, engine)
        with KnowledgeBase.open(self.target.settings) as migrated:
            yield from unsound(migrated)

    def _halfway(self, found: str | None, *, is_acknowledged: bool) -> Iterator[Violation]:
        if is_acknowledged and found != database.head_revision():
            yield Violation("lost", f"a migration was acknowledged, and the schema is at {found}")
        elif found not in (self.revision, database.head_revision()):
            yield Violation("mismatched", f"a migration from {self.revision} stopped halfway, at {found}")

    def _differences(self, made: Engine, migrated: Engine) -> Iterator[Violation]:
        with made.connect() as one, migrated.connect() as other:
            for name, _ in sorted(_schema(one) ^ _schema(other)):
                yield Violation("mismatched", f"migrated from {self.revision}, the schema has another {name}")
            for name, columns in self.columns.items() if self.revision != FIRST else ():
                # Sentences follow from the texts: a migration may write them anew, under other ids.
                compared = [held for held in columns if (name, held) != (SentenceRow.__tablename__, "id")]
                if _rows(one, name, compared) != _rows(other, name, compared):
                    yield Violation("lost", f"migrated from {self.revision}, {name} has not the rows it had")


@contextmanager
def _engine(settings: Settings) -> Iterator[Engine]:
    engine = database.connect_database(settings)
    try:
        yield engine
    finally:
        engine.dispose()


def _columns(session: Session) -> Columns:
    """Gives the columns of each table at this revision."""
    found = {row.table_name: row.columns for row in session.execute(_COLUMNS)}
    return {held.name: found[held.name] for held in _tables() if held.name in found}


def _tables() -> list[Table]:
    """List the tables that a migration carries: those of a backup, and sentences, which no backup holds."""
    return [*archive_tables(), TableRow.metadata.tables[SentenceRow.__tablename__]]


def _fill(source: Session, target: Session, columns: Columns) -> None:
    target.execute(text("DELETE FROM secret"))
    for keyset_id in source.scalars(select(KeysetRow.id).where(KeysetRow.state != "retired")):
        keysets.create_partition(target, keyset_id)
    for held in _tables():
        if held.name in columns:
            _copy(source, target, held, columns[held.name])
    if SentenceRow.__tablename__ in columns:  # a later migration writes more of them
        target.execute(
            text(
                "SELECT setval(pg_get_serial_sequence('sentence', 'id'), (SELECT max(id) + 1 FROM sentence))"
            )
        )


def _copy(source: Session, target: Session, copied: Table, columns: list[str]) -> None:
    """Copy rows by primary key: the log takes changes in their order, which is not that of its pages for long."""
    named, held = sql.Identifier(copied.name), sql.SQL(", ").join(map(sql.Identifier, columns))
    key = sql.SQL(", ").join(sql.Identifier(part.name) for part in copied.primary_key)
    rows = sql.SQL("COPY (SELECT {} FROM {} ORDER BY {}) TO STDOUT (FORMAT binary)").format(held, named, key)
    into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(named, held)
    reading, writing = (database.connection_of(session).cursor() for session in (source, target))
    with reading, writing, reading.copy(rows) as given, writing.copy(into) as taken:
        for piece in given:
            taken.write(piece)


def _schema(connection: Connection) -> set[tuple[str, str]]:
    return {(name, said) for name, said in connection.execute(_SCHEMA)}


def _rows(connection: Connection, name: str, columns: list[str]) -> Counter[tuple[str | None, ...]]:
    texts = [cast(column(held), Text) for held in columns]
    return Counter(tuple(row) for row in connection.execute(select(*texts).select_from(table(name))))
