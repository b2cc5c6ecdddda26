"""`colmlm db`: starts, stops, migrates and describes the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import DATABASE
from colmlm.cli.operating.sizing import EXAMPLES as SIZING_EXAMPLES
from colmlm.cli.operating.sizing import sizing
from colmlm.cli.options import examples, require_with, wants_json
from colmlm.cli.output import print_json, say

if TYPE_CHECKING:
    from colmlm.kb.store.settings import Settings

app = typer.Typer(
    help="Start, stop, migrate, describe and size the database.", epilog=examples("colmlm db status")
)


@app.command(epilog=examples("colmlm db up"))
def up() -> None:
    """Start the embedded database, migrate it and leave it running until `colmlm db down`.

    No other command needs this: each starts the database where it does not run, and the last one to use it stops it.
    """
    from colmlm.kb.store import database
    from colmlm.kb.store.embedded_server import EmbeddedServer

    settings = Runtime.from_environment().settings
    engine = database.connect_database(settings)
    try:
        if (server := EmbeddedServer.of(settings)) is not None:
            server.keep_running()
        database.migrate_database(engine)
    finally:
        engine.dispose()
    _report(settings)


@app.command(epilog=examples("colmlm db down"))
def down() -> None:
    """Stop the embedded database, also where a program still uses it.

    A server or worker that still runs waits for it: the next command that needs it, or `colmlm db up`, starts it again.
    """
    from colmlm.kb.store.embedded_server import EmbeddedServer

    server = EmbeddedServer.of(Runtime.from_environment().settings)
    if server is None:
        raise typer.BadParameter("COLMLM_DATABASE_URL names a server of its own; stop it where it runs.")
    was_running = server.stop()
    if wants_json():
        print_json({"running": False, "was_running": was_running})
    else:
        say("Stopped." if was_running else "It is not running (it stops with its last command).")


@app.command(epilog=examples("colmlm db migrate"))
def migrate() -> None:
    """Bring the schema to what this program needs. Safe to repeat, and to run twice at once."""
    from colmlm.kb.store import database

    settings = Runtime.from_environment().settings
    engine = database.connect_database(settings)
    try:
        was_at_head = database.is_at_head(engine)
        database.migrate_database(engine)
    finally:
        engine.dispose()
    if wants_json():
        print_json({"revision": database.head_revision(), "migrated": not was_at_head})
    else:
        say(f"{'Was already at' if was_at_head else 'Migrated to'} {database.head_revision()}.")


@app.command(
    epilog=examples("colmlm db status", "colmlm db status --json", 'psql "$(colmlm db status --url)"')
)
def status(
    url: Annotated[
        bool, typer.Option("--url", help="Print the URL alone, for psql and other programs.")
    ] = False,
    show_password: Annotated[
        bool, typer.Option("--show-password", help="With --url: also the password of COLMLM_DATABASE_URL.")
    ] = False,
) -> None:
    """Say whether the database runs, where it is and whether it needs a migration. Starts nothing.

    The exit code is 5 where it does not run or needs a migration, but with --url 0. The embedded one has no password
    and no port.
    """
    settings = Runtime.from_environment().settings
    if url:
        found = _url(settings, show_password=show_password)
        print_json({"url": found}) if wants_json() else say(found)
        return
    require_with("--url", show_password=show_password)
    state = _report(settings)
    if not (state.running and state.at_head):
        raise typer.Exit(DATABASE)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the database. `at_head` is False also if it does not run. `cause` explains why it is not ready."""

    embedded: bool
    running: bool
    url: str
    server_version: str | None = None
    at_head: bool = False
    cause: str | None = None


def _report(settings: Settings) -> Status:
    state = _status(settings)
    if wants_json():
        print_json(state)
        return state
    say(f"{'embedded' if state.embedded else 'server'} database at {state.url}")
    if not state.running:
        say(f"not running{f': {state.cause}' if state.cause else ''}")
    else:
        say(f"PostgreSQL {state.server_version}, {state.cause or 'schema is current'}")
    return state


def _status(settings: Settings) -> Status:
    from sqlalchemy import text

    from colmlm.kb.errors import DatabaseUnavailable, MigrationNeeded
    from colmlm.kb.store import database
    from colmlm.kb.store.embedded_server import EmbeddedServer

    server = EmbeddedServer.of(settings)
    embedded = server is not None
    where = _url(settings, show_password=False)
    if server is not None and server.pid() is None:
        return Status(embedded, False, where)
    try:
        engine = database.connect_database(settings)
    except DatabaseUnavailable as error:
        return Status(embedded, False, where, cause=str(error))
    with engine.connect() as connection:
        version = str(connection.scalar(text("SHOW server_version")))
    try:
        database.require_head(engine)
    except MigrationNeeded as error:
        return Status(embedded, True, where, version, cause=str(error))
    finally:
        engine.dispose()
    return Status(embedded, True, where, version, at_head=True)


def _url(settings: Settings, *, show_password: bool) -> str:
    """Give the libpq URL of the database; for an embedded server that does not run, its data directory."""
    from colmlm.kb.store.embedded_server import EmbeddedServer
    from colmlm.kb.store.engines import format_database_url

    if settings.database_url is not None:
        return format_database_url(settings.database_url, with_secrets=show_password)
    server = EmbeddedServer(settings.home / "postgres")
    return server.url() or str(server.data)


app.command("sizing", epilog=SIZING_EXAMPLES)(sizing)
