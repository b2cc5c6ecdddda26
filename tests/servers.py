"""Real servers of databases, with the schema built once by Alembic, and clones of it."""

from __future__ import annotations

import getpass
import os
import pwd
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, NullPool, create_engine, make_url, text

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.settings import Settings

DEBIAN, DEBIANS = "debian15", Path("/usr/lib/postgresql/15/bin")
TEMPLATE = "colmlm_template"

T = TypeVar("T")


@contextmanager
def started(kind: str) -> Iterator[URL]:
    """Starts the embedded server, or Debian's, with a migrated template database on it, and gives its URL."""
    # Not tmp_path_factory, whose folders are closed to the other user that a server may run as.
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        Path(folder).chmod(0o755)
        start = _debian if kind == DEBIAN else _embedded
        with start(Path(folder)) as url:
            _make_template(url)
            yield url


@contextmanager
def _embedded(folder: Path) -> Iterator[URL]:
    engine = database.connect_database(Settings(home=folder))
    try:
        yield engine.url
    finally:
        engine.dispose()
        EmbeddedServer(folder / "postgres").stop()


@contextmanager
def _debian(folder: Path) -> Iterator[URL]:
    """Starts Debian's server; as PostgreSQL refuses to run as root, it runs as the package's own user there."""
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    data = folder / "data"
    data.mkdir()
    os.chown(data, pwd.getpwnam(user).pw_uid, -1)

    def run(program: str, *arguments: str) -> None:
        as_user = ["setpriv", f"--reuid={user}", "--clear-groups"] if os.geteuid() == 0 else []
        command = [*as_user, str(DEBIANS / program), "-D", str(data), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

    run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync")
    run("pg_ctl", "start", "-w", "-l", str(data / "log"), "-o", f"-h '' -k {data}")
    try:
        yield make_url(f"postgresql+psycopg://postgres@/postgres?host={data}")
    finally:
        run("pg_ctl", "stop", "-m", "immediate")


def _make_template(server: URL) -> None:
    with _administrator(server) as execute:
        execute("ALTER SYSTEM SET fsync = off")  # the tests kill processes, but no machine loses power
        execute("SELECT pg_reload_conf()")
        execute(f"CREATE DATABASE {TEMPLATE}")
    engine = create_engine(server.set(database=TEMPLATE))
    database.migrate_database(engine)
    engine.dispose()


@contextmanager
def _administrator(server: URL) -> Iterator[Callable[[str], object]]:
    engine = create_engine(server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        yield lambda statement: connection.execute(text(statement))


_filled: dict[tuple[URL, str], Any] = {}


def fill(server: URL, name: str, filling: Callable[[KnowledgeBase], T]) -> T:
    """Make a template database with what `filling` writes into an empty base, and give what it gives.

    It is made once: fixtures of a session are set up again wherever pytest goes from one kind of server to another.
    """
    if (server, name) not in _filled:
        with _administrator(server) as execute, tempfile.TemporaryDirectory() as home:
            _copy(execute, name, TEMPLATE)
            url = server.set(database=name).render_as_string(hide_password=False)
            with KnowledgeBase.open(Settings(home=Path(home), database_url=url, actor="tester")) as kb:
                _filled[server, name] = filling(kb)
    filled: T = _filled[server, name]
    return filled


def _copy(execute: Callable[[str], object], name: str, template: str) -> None:
    execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")


@contextmanager
def clone(server: URL, template: str = TEMPLATE) -> Iterator[str]:
    """Gives the URL of a new database, which is dropped on leaving."""
    name = f"test_{uuid.uuid4().hex}"
    with _administrator(server) as execute:
        _copy(execute, name, template)
        try:
            yield server.set(database=name).render_as_string(hide_password=False)
        finally:
            execute(f"DROP DATABASE {name} WITH (FORCE)")
