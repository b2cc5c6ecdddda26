"""Databases for tests: real servers, with the schema built once by Alembic and one clone of it per test.

`server` is the embedded one. Tests of the statements that depend most on PostgreSQL's version (DDL, COPY, partitions,
traces) also run on Debian's PostgreSQL 15, the oldest version supported.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import hypothesis
import psutil
import pytest
from sqlalchemy import URL

from colmlm.kb import interpreter
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import waits
from colmlm.kb.store.settings import Settings
from tests import servers
from tests.fakes import FakeEncoder
from tests.milvus_server import MilvusServer, milvus_server
from tests.places import PYTHONPATH
from tests.receiver import Receiver, receiver

MEMORY, ROOM = Path("/dev/shm"), 4 << 30  # bytes
_NOUNS = "database erasure ingest keysets attribution sentences words search references"
ON_THE_OLDEST_TOO = {f"test_{noun}" for noun in _NOUNS.split()}


BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--begin-within", type=float, metavar="SECONDS", help="Skip the tests that are not begun by then"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds: float | None = item.config.getoption("--begin-within")
    if seconds is not None and time.monotonic() - BEGAN > seconds:
        pytest.skip(f"not begun within {seconds:.0f} s")


def pytest_configure() -> None:
    """Lets processes that tests start import modules from this checkout, and property tests take their time."""
    os.environ["PYTHONPATH"] = PYTHONPATH
    _write_to_memory()
    # A shell starts what it runs in the background deaf to an interrupt, and whatever that starts would be, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a busy machine a drawn example may take any time, and no test is about that.
    hypothesis.settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("untimed")
    interpreter.shut_out_current_directory()


def _write_to_memory() -> None:
    """Puts everything that tests write into memory, where there is room and TMPDIR names no other place.

    A clone of a database is some 440 files, which live as long as a test. On a disk their journal costs more than they.
    """
    if "TMPDIR" not in os.environ and MEMORY.is_dir():
        found = os.statvfs(MEMORY)
        free = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
        if free >= ROOM and not found.f_flag & os.ST_NOEXEC:
            os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports all tests without searches for garbage, and spares what was imported from later ones: both go through
    a million objects each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Require a reason of every test that people do not wait for."""
    if any(not mark.kwargs.get("reason") for mark in item.iter_markers("slow")):
        raise pytest.UsageError(f"{item.nodeid}: say why it is slow: @pytest.mark.slow(reason=...)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        path = metafunc.definition.path
        oldest_too = "kb" in path.parts and path.stem in ON_THE_OLDEST_TOO
        metafunc.parametrize(
            "server", ["embedded", servers.DEBIAN] if oldest_too else ["embedded"], indirect=True
        )


@pytest.fixture(autouse=True)
def _no_outage_was_told() -> None:
    """Forgets which outages of the database an earlier test has reported, as in a new process."""
    waits.TELLER.told.clear()


@pytest.fixture(autouse=True)
def _log_goes_where_it_went() -> Iterator[None]:
    """Restores the log's handlers and level after a test, so that a command's log does not get what later tests log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def url_of() -> Iterator[Callable[[str], URL]]:
    """A function that gives the URL of a server of a kind, which it starts once: all run until the end."""
    with ExitStack() as running:
        yield cache(lambda kind: running.enter_context(servers.started(kind)))


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, url_of: Callable[[str], URL]) -> URL:
    """The URL of a server with a migrated template database on it."""
    if request.param == servers.DEBIAN and not servers.DEBIANS.is_dir():
        pytest.skip(f"no PostgreSQL 15 in {servers.DEBIANS}")
    return url_of(request.param)


@pytest.fixture
def template() -> str:
    """The name of the database that a test's own is a clone of: an empty one, with the newest schema."""
    return servers.TEMPLATE


@pytest.fixture
def database_url(server: URL, template: str) -> Iterator[str]:
    """A database of this test's own."""
    with servers.clone(server, template) as url:
        yield url


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


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    """The server of the wheel, or Milvus Lite where that does not start."""
    pytest.importorskip("pymilvus", reason="the extra milvus is not installed")
    reasons = []
    with ExitStack() as stack:
        for is_lite in (False, True):
            folder = tmp_path_factory.mktemp("milvus") / "data"
            try:
                running = stack.enter_context(milvus_server(folder, is_lite=is_lite))
            except RuntimeError as reason:
                reasons.append(str(reason))
            else:
                yield running
                return
    pytest.skip(f"no Milvus starts: {'; '.join(reasons)}")


@pytest.fixture
def hook() -> Iterator[Receiver]:
    """Run a receiver of webhooks on this machine."""
    with receiver() as found:
        yield found
