"""The database, an embedded PostgreSQL under the home directory or the server that a URL names, and its migrations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from colmlm.kb.errors import DatabaseUnavailable, MigrationNeeded
from colmlm.kb.store.causes import refusal_of
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.engines import engine_on, shown
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits

if TYPE_CHECKING:
    from alembic.config import Config

T = TypeVar("T")

MIGRATIONS = Path(__file__).absolute().parents[2] / "migrations"  # by path, since they import this module
MIGRATION_LOCK = 0x636F6C6D01  # advisory lock keys of this program start with "colm"

START_SECONDS = 10.0  # how long to wait for the embedded server

# A plan is kept for all executions. Made while a table was small, it would go on reading it whole when that has grown;
# and a lookup seldom seeks one row twice, so that remembering rows costs more than it spares.
_PLANNED_ONCE = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_memoize=off"


def connect(settings: Settings, application: str = "colmlm") -> Engine:
    """Gives an engine on the database of `settings`, once that answers. Raises `DatabaseUnavailable`.

    The embedded server is started where it does not run, is shared by every process of this home, and is stopped by the
    last of them to exit. A process that is killed leaves it running for the next. Where the server itself is killed, a
    process that goes on starts it again (`kb.store.keeper`).
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
            raise DatabaseUnavailable(shown(url), str(error.orig).strip().replace("\n", " ")) from error


def id_array(ids: Iterable[int]) -> str:
    """Gives ids as PostgreSQL writes an array; the driver goes through a list number by number, several times."""
    return f"{{{','.join(map(str, ids))}}}"


def connection_of(session: Session) -> psycopg.Connection:
    """Gives the driver's own connection, in the session's transaction, for COPY and statements that must be fast."""
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    return connection


@contextmanager
def statement_on(engine: Engine) -> Iterator[psycopg.Connection]:
    """Gives the driver's own connection for one statement that reads, without a transaction around it."""
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


def beside(engine: Engine, application: str, waits: Waits, connections: int) -> Engine:
    """Gives an engine on the same database with connections of its own and with these limits for its statements."""
    return engine_on(
        engine.url,
        application,
        waits.options(),
        patience=waits.patience,
        pool_size=connections,
        max_overflow=0,
    )


def reader(engine: Engine, waits: Waits) -> Engine:
    """Gives an engine on the same database for single statements, without a transaction around them or a ping before.

    Its statements are planned once, whatever the number of ids they are given, and seek rows by indexes.
    """
    options = f"{_PLANNED_ONCE} {waits.options()}"
    return engine_on(
        engine.url,
        "colmlm",
        options,
        patience=waits.patience,
        pings=False,
        isolation_level="AUTOCOMMIT",
    )


def read_from(reader: Engine, ask: Callable[[psycopg.Connection], T]) -> T:
    """Gives what is asked of the driver's own connection, of a `reader`; asks again if the database was restarted."""
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


def migrate(engine: Engine, revision: str = "head") -> None:
    """Brings the schema to head, in one transaction. Where two processes start at once, the second waits for the first.

    What a migration does `beforehand`, such as building indexes while edits go on, is outside of it. An older
    `revision` gives the schema of an earlier release, for tests of later migrations.
    """
    from alembic import command

    config = _alembic()
    _beforehand(engine, config, revision)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def _beforehand(engine: Engine, config: Config, revision: str) -> None:
    """Lets the migrations that are due do what they do in statements of their own; a new database has nothing due."""
    from alembic.script import ScriptDirectory

    newest_first = revisions()
    wanted = newest_first[0] if revision == "head" else revision
    if (found := revision_of(engine)) not in newest_first or found in newest_first[
        : newest_first.index(wanted)
    ]:
        return
    due = list(ScriptDirectory.from_config(config).iterate_revisions(revision, found))
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
    """Says whether the schema is the one that this program was written for."""
    return revision_of(engine) == head_revision()


def can_serve(engine: Engine) -> bool:
    """Says whether a running program may go on with this schema: it is the program's own, or a later release's.

    A migration leaves the release before it working (docs/operations.md), so that servers are replaced one by one.
    """
    found = revision_of(engine)
    return found == head_revision() or (found is not None and found not in revisions())


def require_head(engine: Engine) -> None:
    """Raises `MigrationNeeded` unless the schema is at head."""
    if (found := revision_of(engine)) != head_revision():
        raise MigrationNeeded(found, head_revision())


def is_empty(engine: Engine) -> bool:
    """Says whether the database has no table yet."""
    with engine.connect() as connection:
        return not inspect(connection).get_table_names()


def revision_of(engine: Engine) -> str | None:
    """Gives the migration that the schema is at; None before the first."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
        return found


@cache
def head_revision() -> str:
    """Gives the newest migration of this program."""
    return revisions()[0]


@cache
def revisions() -> tuple[str, ...]:
    """Gives every migration of this program, the newest first: a file is named by its number.

    Alembic knows them as well, but would import each of them whenever a base is opened.
    """
    numbers = (file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))
    return tuple(sorted(numbers, reverse=True))


def _alembic() -> Config:
    """Gives Alembic's configuration for the `migrations` package, wherever that is installed."""
    from alembic.config import Config

    config = Config()
    # Alembic interpolates % in options, so it is doubled.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
