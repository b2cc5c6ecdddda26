"""The database, an embedded PostgreSQL under the home directory or the server that a URL names, and its migrations."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.errors import DatabaseUnavailable, MigrationNeeded
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.engines import engine_on, format_database_url
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits, refusal_of
from colmlm.kb.texts.searched import frame_of
from colmlm.kb.texts.sentences import sentence_ends

if TYPE_CHECKING:
    from alembic.config import Config


T = TypeVar("T")

MIGRATIONS = Path(__file__).absolute().parents[2] / "migrations"  # by path, since they import this module
MIGRATION_LOCK = 0x636F6C6D01  # advisory lock keys of this program start with "colm"

START_SECONDS = 10.0  # how long to wait for the embedded server

# A plan is kept for all executions. Made while a table was small, it would go on reading it whole when that has grown;
# and a lookup seldom seeks one row twice, so that remembering rows costs more than it spares.
_PLANNED_ONCE = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_memoize=off"


def connect_database(settings: Settings, application: str = "colmlm") -> Engine:
    """Give an engine on the database of `settings`, once that answers. Raises `DatabaseUnavailable`.

    The embedded server is started where it does not run, is shared by every process of this home, and is stopped by the
    last of them to exit. A process that is killed leaves it running for the next. Where the server itself is killed, a
    process that goes on starts it again (`kb.store.embedded_server`).
    """
    embedded = EmbeddedServer.of(settings)
    deadline = time.monotonic() + (START_SECONDS if embedded else 0.0)
    while True:
        url = embedded.start(deadline) if embedded else str(settings.database_url)
        engine = engine_on(url, application)
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
            return engine
        except (
            OperationalError,
            ProgrammingError,
        ) as error:  # the second: the URL asks for what libpq does not know
            engine.dispose()
            # A server killed a moment ago may still look alive and so not be started, so this tries again for a while.
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise DatabaseUnavailable(
                format_database_url(url), str(error.orig).strip().replace("\n", " ")
            ) from error


def id_array(ids: Iterable[int]) -> str:
    """Format ids as an array of PostgreSQL, which is faster than the driver's conversion of a list."""
    return f"{{{','.join(map(str, ids))}}}"


def connection_of(session: Session) -> psycopg.Connection:
    """Give the driver's own connection, in the session's transaction, for COPY and statements that must be fast."""
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    return connection


@contextmanager
def statement_on(engine: Engine) -> Iterator[psycopg.Connection]:
    """Give the driver's own connection for one statement that reads, without a transaction around it."""
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        _driver_of(connection) as driver,
    ):
        yield driver


@contextmanager
def _driver_of(connection: Connection) -> Iterator[psycopg.Connection]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    try:
        yield driver
    except psycopg.OperationalError as error:
        connection.invalidate()  # it may be gone, or in the middle of something
        raise OperationalError(None, None, error) from error  # as SQLAlchemy would


def second_engine(engine: Engine, application: str, waits: Waits, connections: int) -> Engine:
    """Give an engine on the same database with connections and statement limits of its own."""
    return engine_on(
        engine.url,
        application,
        waits.options(),
        silence_limit=waits.silence_limit,
        pool_size=connections,
        max_overflow=0,
    )


def reading_engine(engine: Engine, waits: Waits) -> Engine:
    """Give an engine on the same database for single reading statements, without transaction or ping.

    Its statements are planned once, whatever the number of ids, and seek rows by indexes.
    """
    options = f"{_PLANNED_ONCE} {waits.options()}"
    return engine_on(
        engine.url,
        "colmlm",
        options,
        silence_limit=waits.silence_limit,
        pings=False,
        isolation_level="AUTOCOMMIT",
    )


def read_from(reader: Engine, ask: Callable[[psycopg.Connection], T]) -> T:
    """Run `ask` on a connection of a reading engine and give its result; run it once more if the connection broke."""
    try:
        return _ask(reader, ask)
    except OperationalError as error:
        if refusal_of(error) is not None:  # it answers and said why it refused
            raise
        reader.dispose()
        return _ask(reader, ask)


def _ask(reader: Engine, ask: Callable[[psycopg.Connection], T]) -> T:
    with reader.connect() as connection, _driver_of(connection) as driver:
        return ask(driver)


def migrate_database(engine: Engine, later: Path | None = None) -> None:
    """Migrate the schema to head in one transaction. Where two processes start at once, the second waits for the first.

    The steps `beforehand` of migrations, such as building indexes while edits go on, run before that transaction.
    `later` is a folder with migrations of a later program version, for tests. Raises `MigrationNeeded` where no
    migration leads from the schema to head.
    """
    known = schema_revisions(later)
    _run_beforehand(engine, later, known)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        if (found := _revision_on(connection)) not in (None, *known):
            raise MigrationNeeded(found, known)
        upgrade_on(connection, later)


def upgrade_on(connection: Connection, later: Path | None = None, revision: str = "head") -> None:
    """Run the migrations up to `revision` in the transaction of this connection."""
    from alembic import command

    config = alembic_config(later)
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _run_beforehand(engine: Engine, later: Path | None, known: tuple[str, ...]) -> None:
    """Run the step `beforehand` of each migration that is due, outside of the transaction that migrates.

    `known` has the revisions of this program, newest first. A new database has nothing due. Each statement commits.
    """
    from alembic.script import ScriptDirectory

    if (found := revision_of(engine)) not in known[1:]:
        return
    due = list(ScriptDirectory.from_config(alembic_config(later)).iterate_revisions("head", found))
    steps = [getattr(script.module, "beforehand", None) for script in reversed(due)]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        lock = {"key": MIGRATION_LOCK}
        # A statement that waits for the lock would keep whoever builds an index concurrently waiting for it.
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), lock):
            time.sleep(0.2)
        try:
            for step in filter(None, steps):
                step(connection)
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), lock)


def is_at_head(engine: Engine) -> bool:
    """Say whether the schema is the one that this program was written for."""
    return revision_of(engine) == head_revision()


def can_serve(engine: Engine) -> bool:
    """Say whether a running program works with this schema: it is the program's own, or that of a later version.

    A migration lets the program version before it go on (docs/production/backup.md): servers are replaced one by one.
    """
    found = revision_of(engine)
    return found is not None and found >= head_revision()


def require_head(engine: Engine) -> None:
    """Raise `MigrationNeeded` unless the schema is at head."""
    if (found := revision_of(engine)) != head_revision():
        raise MigrationNeeded(found, schema_revisions())


def is_empty(engine: Engine) -> bool:
    """Say whether the database has no table yet."""
    with engine.connect() as connection:
        return not inspect(connection).get_table_names()


def revision_of(engine: Engine) -> str | None:
    """Give the number of the migration that the schema is at; None before the first."""
    with engine.connect() as connection:
        return _revision_on(connection)


def _revision_on(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


def head_revision() -> str:
    """Give the number of this program's newest migration, such as "0038"."""
    return schema_revisions()[0]


@cache
def schema_revisions(later: Path | None = None) -> tuple[str, ...]:
    """Give the number of every migration of this program and of the folder `later`, such as "0038", the newest first.

    A file is named by its number. Alembic knows them as well, but would import each of them whenever a base is opened.
    """
    files = (file for folder in _migration_folders(later) for file in folder.glob("[0-9]*_*.py"))
    return tuple(sorted((file.name.partition("_")[0] for file in files), reverse=True))


def _migration_folders(later: Path | None) -> list[Path]:
    return [MIGRATIONS / "versions", *([later] if later else [])]


def alembic_config(later: Path | None = None) -> Config:
    """Give Alembic's configuration for the `migrations` package, wherever that is installed."""
    from alembic.config import Config

    config = Config()
    options = {
        "script_location": str(MIGRATIONS),
        "path_separator": "os",
        "version_locations": os.pathsep.join(map(str, _migration_folders(later))),
    }
    for name, value in options.items():
        config.set_main_option(name, value.replace("%", "%%"))  # since Alembic interpolates it
    return config


# Copies rows into the tables in bulk, by COPY and under ids that were reserved before.
#
# The lines of COPY's text format are built here, which takes a fraction of the time of the driver's
# `write_row`.

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
    """A document to insert under `document_id`. `kept` has the ids of facts to keep, by their ordinal here."""

    document: AnnotatedDocument
    sha256: str
    record_sha256: str
    document_id: int = 0
    kept: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_new_facts(self) -> int:
        return len(self.document.facts) - len(self.kept)


def reserve_ids(session: Session, sequence: str, count: int) -> int:
    """Reserve `count` successive ids of a sequence, and give the first.

    The log must be locked, as others draw ids only with that lock.
    """
    reserving = text(
        "SELECT setval(CAST(:name AS regclass), nextval(CAST(:name AS regclass)) + :count - 1) - :count + 1"
    )
    first: int = session.execute(reserving, {"name": sequence, "count": count}).scalar_one()
    return first


def copy_blocks(session: Session, statement: bytes, blocks: Iterable[bytes | str]) -> None:
    """Run one COPY FROM STDIN with these blocks."""
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
    """Insert documents under their ids, and their new facts, in order, under ids from `first_fact_id` on.

    A fact has the review state that its file names. Other facts are accepted, or with `proposed` they are proposed.
    """
    rows = list(rows)
    review = f"proposed\t{seq}" if proposed else "accepted\t\\N"
    copy_blocks(session, _COPY_DOCUMENTS, join_lines(_document_line(corpus, row) for row in rows))
    # A connection carries one COPY at a time, so the versions, a short line each, are collected for the next.
    versions: list[str] = []
    copy_blocks(session, _COPY_FACTS, join_lines(_fact_lines(rows, first_fact_id, seq, versions, review)))
    copy_blocks(session, _COPY_VERSIONS, join_lines(versions))


def join_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join lines of COPY into blocks, since a message to the server for each line would cost more than the line."""
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
    return "\t".join((str(row.document_id), *map(_copy_field, names), _copy_field(d.text))) + "\n"


def _fact_lines(
    rows: Iterable[IncomingDocument], fact_id: int, seq: int, versions: list[str], review: str
) -> Iterator[str]:
    """Yield the COPY lines of each document's new facts, and append the lines of their versions to `versions`."""
    for row in rows:
        facts, document_id, kept = [], row.document_id, row.kept
        title, text_ = row.document.title, row.document.text
        ends = sentence_ends(text_) if row.num_new_facts else []
        for ordinal, span in enumerate(row.document.facts):
            if ordinal in kept:
                continue
            deleted = seq if span.deleted else r"\N"
            question = r"\N" if span.question is None else escape_words(span.question)
            answer = r"\N" if span.answer is None else escape_words(span.answer)
            doubt = r"\N" if span.doubt is None else escape_words(span.doubt)
            said = review if span.review is None else f"{span.review}\t{seq}"
            facts.append(
                f"{fact_id}\t{document_id}\t{ordinal}\t{span.start}\t{span.end}\t{question}\t{answer}\t{seq}\t{deleted}"
                f"\t{said}\t{doubt}\t{frame_of(title, text_, ends, span.start, span.end)}\n"
            )
            if span.current is None:
                versions.append(f"{fact_id}\t1\t{escape_words(span.value)}\t{seq}\t{deleted}\n")
            else:  # the value in the text was never true in this base, so its range of changes is empty
                versions.append(f"{fact_id}\t1\t{escape_words(span.value)}\t{seq}\t{seq}\n")
                versions.append(f"{fact_id}\t2\t{escape_words(span.current)}\t{seq}\t{deleted}\n")
            fact_id += 1
        yield "".join(facts)


def _copy_field(words: str | None) -> str:
    return r"\N" if words is None else escape_words(words)


def escape_words(words: str) -> str:
    """Escape the characters of a text that COPY would take for an escape, or for the end of a field or a line."""
    if "\\" in words:
        words = words.replace("\\", "\\\\")
    if "\n" in words:
        words = words.replace("\n", "\\n")
    if "\t" in words:
        words = words.replace("\t", "\\t")
    if "\r" in words:
        words = words.replace("\r", "\\r")
    return words


# References: foreign keys of rows that are inserted in bulk, checked at once instead of row by row.
#
# The server checks a foreign key by a statement for each row: it locks what the row refers to against
# deletion, where that is there. What this transaction inserted itself needs no such lock, since nobody else
# sees it, and the rest is locked by one statement for all rows: whoever deletes meanwhile meets the same.
#
# Constraints of other kinds are checked as ever. A role that may not switch the checks has each row checked.

# Rows from which on it is worth two statements more, and that the server plans anew what it had planned.
MANY = 1_000

_MAY = (
    b"SELECT has_parameter_privilege('session_replication_role', 'SET')"
    b" AND current_setting('session_replication_role') = 'origin'"
)
_AT_ONCE = b"SET LOCAL session_replication_role = replica"
_BY_ROW = b"SET LOCAL session_replication_role = origin"


@contextmanager
def checked_at_once(session: Session, rows: int) -> Iterator[bool]:
    """Switch off foreign key checks for `rows` inserts in the block; yield False where they stay on.

    The caller ensures that the rows referred to stay until the end of the transaction. Ordinary triggers do not run.
    """
    connection = connection_of(session)
    at_once = rows >= MANY and bool((connection.execute(_MAY).fetchone() or (False,))[0])
    if at_once:
        connection.execute(_AT_ONCE)
    yield at_once
    if at_once:  # where the block failed, the end of the transaction does it
        connection.execute(_BY_ROW)
