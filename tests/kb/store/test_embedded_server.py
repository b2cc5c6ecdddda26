"""The embedded server is found, started again and stopped for good, whatever its last life left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from colmlm.kb.errors import DatabaseUnavailable, MigrationNeeded
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.embedded_server import EmbeddedServer, Keeper, require_wanted
from colmlm.kb.store.settings import Settings


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home)


@pytest.fixture
def embedded(settings: Settings) -> Iterator[EmbeddedServer]:
    """A server that runs."""
    database.connect_database(settings).dispose()
    server = EmbeddedServer.of(settings)
    assert server is not None
    yield server
    server.stop()


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def killed(embedded: EmbeddedServer) -> int:
    """The number of the process that was the server."""
    pid = embedded.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: embedded.pid() != pid)
    return pid


def survive_a_kill(embedded: EmbeddedServer) -> None:
    before = killed(embedded)
    until(lambda: embedded.pid() not in (None, before))


def answers(settings: Settings) -> bool:
    engine = database.connect_database(settings)
    try:
        with engine.connect() as connection:
            return bool(connection.scalar(text("SELECT true")))
    finally:
        engine.dispose()


def test_a_new_base_needs_no_migration_and_one_that_lost_its_revision_does(
    embedded: EmbeddedServer, settings: Settings
):
    with KnowledgeBase.open(settings) as kb, kb.engine.begin() as connection:
        assert database.is_at_head(kb.engine)
        connection.execute(text("DELETE FROM alembic_version"))
    with pytest.raises(MigrationNeeded, match="colmlm db migrate"):
        KnowledgeBase.open(settings)


def test_a_number_that_is_another_programs_by_now_is_no_server(embedded: EmbeddedServer, settings: Settings):
    """As in a container, whose processes have the same few numbers after each start."""
    pid = killed(embedded)
    file = embedded.data / "postmaster.pid"
    # A program that the server's user might run: where it is the same user, PostgreSQL takes it for its own kind.
    with subprocess.Popen(["sleep", "600"], user=file.owner()) as other:
        for noted in (file, *embedded.data.glob(".s.PGSQL.*.lock")):
            noted.write_text(noted.read_text().replace(str(pid), str(other.pid), 1))
        assert embedded.pid() is None and embedded.url() is None
        assert answers(settings)
        other.kill()


def test_a_killed_server_is_started_again_and_a_stopped_one_is_not(
    embedded: EmbeddedServer, settings: Settings
):
    with Keeper(settings), Keeper(settings):  # as a server and its worker
        for _ in range(2):
            survive_a_kill(embedded)
        assert answers(settings)
        assert embedded.stop() and not embedded.stop()
        assert embedded.revive() is False
        with pytest.raises(DatabaseUnavailable, match="colmlm db up"):
            require_wanted(settings)
        assert embedded.pid() is None
        assert answers(settings)  # asked for, it starts
        require_wanted(settings)
        survive_a_kill(embedded)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_copy_whose_files_are_another_users_says_so(embedded: EmbeddedServer, tmp_path: Path):
    user = (embedded.data / "PG_VERSION").owner()
    embedded.stop()
    copied = EmbeddedServer(tmp_path / "copied" / "postgres")
    shutil.copytree(embedded.data, copied.data)  # which does not keep the owner
    with pytest.raises(DatabaseUnavailable, match=f"root's and it runs as {user}: chown -R {user}"):
        copied.start(time.monotonic())


def test_a_home_that_is_gone_is_not_made_anew(tmp_path: Path):
    embedded = EmbeddedServer(tmp_path / "home" / "postgres")
    with pytest.raises(DatabaseUnavailable, match="gone"):
        embedded.revive()
    assert list(tmp_path.iterdir()) == [] and embedded.stop() is False


def test_a_home_below_a_file_is_not_told_to_be_made_writable(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DatabaseUnavailable, match=r"Confirmed edits are kept\. See `colmlm doctor`"
    ) as refused:
        EmbeddedServer(tmp_path / "file" / "home" / "postgres").start(time.monotonic())
    assert "write" not in str(refused.value)


def test_a_server_elsewhere_is_its_owners_to_start():
    settings = Settings(home=Path("/nowhere"), database_url="postgresql+psycopg://nobody@127.0.0.1:1/x")
    assert EmbeddedServer.of(settings) is None
    require_wanted(settings)
    with Keeper(settings) as keeper:
        assert keeper._thread is None
