"""Migrates a second database to head, as a child does, and judges the outcome.

It is empty, so that its schema is created, or has the base's rows and gets the migrations of a made-up later release.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import sql
from sqlalchemy import Connection, Engine, Table, Text, cast, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from colmlm.kb.backup.write import archive_tables
from colmlm.kb.errors import KBError
from colmlm.kb.keys import keysets
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import KeysetRow, SentenceRow, TableRow
from colmlm.lab.faults.judge import Violation, fsck_faults
from colmlm.lab.faults.target import CrashTarget, is_quiet
from colmlm.lab.faults.world import StepJournal, World
from colmlm.migrations.statements import build_beforehand, building, run

NO_SCHEMA = "none"  # the revision of a database without a schema
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
    UNION ALL
    SELECT indexrelid::regclass::text, 'broken' FROM pg_index WHERE NOT indisvalid
) AS everything WHERE name !~ '^fact_key_[0-9]'
""")


# A later release, of which each migration is done by functions of this module.
_NOTES = "ALTER TABLE fact ADD COLUMN later_note text"
# Of columns that are there: to add one beforehand would wait for the longest edit and keep those after it waiting.
_LATER_INDEXES = {"fact_later_idx": "fact (answer, id)"}
_FILE = """
from colmlm.lab.faults.migration import {functions}

revision, down_revision = "{revision}", "{before}"
"""
_LATER = ("build_indexes as beforehand, add_notes as upgrade", "add_accounts as upgrade")


def write_later_release(folder: Path) -> tuple[str, ...]:
    """Write the migrations of a later release into a new folder, and give their revisions."""
    folder.mkdir()
    head, revisions = int(database.head_revision()), []
    for number, functions in enumerate(_LATER, start=head):
        before, revision = (f"{n:04d}" for n in (number, number + 1))
        content = _FILE.format(functions=functions, revision=revision, before=before)
        (folder / f"{revision}_later.py").write_text(content, encoding="utf-8")
        revisions.append(revision)
    return tuple(revisions)


def build_indexes(connection: Connection) -> None:
    """Build an index on facts while edits go on."""
    build_beforehand(connection, _LATER_INDEXES)


def add_notes() -> None:
    """Add a column to facts, and the index where it was not built beforehand."""
    for statement in (_NOTES, *building(_LATER_INDEXES)):
        run(statement)


def add_accounts() -> None:
    """Add a table with a row for each fact, and a column with a default to keysets."""
    run("CREATE TABLE later_account (fact_id bigint CONSTRAINT later_account_pkey PRIMARY KEY, seq bigint)")
    run("INSERT INTO later_account SELECT id, created_seq FROM fact")
    run("ALTER TABLE keyset ADD COLUMN later_rank integer NOT NULL DEFAULT 0")


def migrate(target: CrashTarget) -> None:
    with _engine(target.settings) as engine:
        database.migrate_database(engine, target.later_migrations)


class Migration:
    """A migration that a child had to do in `target`, which this makes a base at `revision`: `NO_SCHEMA`, or head.

    At head, `target` gets the rows of the base `source`, and what follows is a later release.
    """

    def __init__(self, source: Settings, target: CrashTarget, revision: str) -> None:
        self.target, self.revision = target, revision
        if revision != NO_SCHEMA:
            write_later_release(target.later)
            with _engine(source) as made, _engine(target.settings) as old:
                database.migrate_database(old)
                with Session(made) as rows, Session(old) as session, session.begin():
                    _fill(rows, session)
        self.later = target.later_migrations
        self.wanted = database.schema_revisions(self.later)[0]

    def judge(
        self, opened: KnowledgeBase, before: World, now: World, journal: StepJournal
    ) -> Iterator[Violation]:
        """Find fault unless the migration was done wholly or not at all.

        Repeating it must give the schema that an undisturbed one gives, keep every row, and leave this program working.
        """
        with _engine(self.target.settings) as engine:
            if not is_quiet(engine):
                yield Violation("errors", "the database still works for a killed migration")
            yield from self._halfway(
                database.revision_of(engine) or NO_SCHEMA, is_acknowledged=bool(journal.acknowledged)
            )
            try:
                migrate(self.target)  # as an operator would
            except (SQLAlchemyError, KBError) as error:
                yield Violation("errors", f"a migration from {self.revision}, once more: {error}")
                return
            yield from self._differences(opened.engine, engine)
        with KnowledgeBase(self.target.settings, database.connect_database(self.target.settings)) as migrated:
            yield from fsck_faults(migrated)

    def _halfway(self, found: str, *, is_acknowledged: bool) -> Iterator[Violation]:
        if is_acknowledged and found != self.wanted:
            yield Violation("lost", f"a migration was acknowledged, and the schema is at {found}")
        elif found not in (self.revision, self.wanted):
            yield Violation("mismatched", f"a migration from {self.revision} stopped halfway, at {found}")

    def _differences(self, made: Engine, migrated: Engine) -> Iterator[Violation]:
        with made.connect() as one, one.begin() as undisturbed, migrated.connect() as other:
            database.upgrade_on(one, self.later)
            for name, _ in sorted(_schema(one) ^ _schema(other)):
                yield Violation("mismatched", f"migrated from {self.revision}, the schema has another {name}")
            for held in _tables() if self.revision != NO_SCHEMA else ():
                if _rows(one, held) != _rows(other, held):
                    yield Violation(
                        "lost", f"migrated from {self.revision}, {held.name} has not the rows it had"
                    )
            undisturbed.rollback()


@contextmanager
def _engine(settings: Settings) -> Iterator[Engine]:
    engine = database.connect_database(settings)
    try:
        yield engine
    finally:
        engine.dispose()


def _tables() -> list[Table]:
    """List the tables that a migration carries: those of a backup, and sentences, which no backup holds."""
    return [*archive_tables(), TableRow.metadata.tables[SentenceRow.__tablename__]]


def _fill(source: Session, target: Session) -> None:
    target.execute(text("DELETE FROM secret"))
    for keyset_id in source.scalars(select(KeysetRow.id).where(KeysetRow.state != "retired")):
        keysets.create_partition(target, keyset_id)
    for held in _tables():
        _copy(source, target, held)


def _copy(source: Session, target: Session, copied: Table) -> None:
    """Copy rows by primary key: the log takes changes in their order, which is not that of its pages for long."""
    named, held = (
        sql.Identifier(copied.name),
        sql.SQL(", ").join(sql.Identifier(column.name) for column in copied.columns),
    )
    key = sql.SQL(", ").join(sql.Identifier(part.name) for part in copied.primary_key)
    rows = sql.SQL("COPY (SELECT {} FROM {} ORDER BY {}) TO STDOUT (FORMAT binary)").format(held, named, key)
    into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(named, held)
    reading, writing = (database.connection_of(session).cursor() for session in (source, target))
    with reading, writing, reading.copy(rows) as given, writing.copy(into) as taken:
        for piece in given:
            taken.write(piece)


def _schema(connection: Connection) -> set[tuple[str, str]]:
    return {(name, said) for name, said in connection.execute(_SCHEMA)}


def _rows(connection: Connection, held: Table) -> Counter[tuple[str | None, ...]]:
    texts = [cast(column, Text) for column in held.columns]
    return Counter(tuple(row) for row in connection.execute(select(*texts)))
