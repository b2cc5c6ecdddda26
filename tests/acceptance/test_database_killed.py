from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from colmlm.kb.store import database
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.settings import Settings
from tests.acceptance.database_killed import run
from tests.acceptance.server import server_process

NOTHING: list[str] = []


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of an embedded server. It is not under tmp_path, which is closed to the user that the server runs as."""
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.slow(reason="kills PostgreSQL and waits for its return")
def test_a_killed_database_comes_back_by_itself_and_no_acknowledged_edit_is_lost(home: Path) -> None:
    outcome = run(home, kills=2)
    assert outcome.edits_lost == 0 and outcome.edits_acknowledged > 0, outcome
    assert outcome.is_good and outcome.requests_refused > 0, outcome


@pytest.mark.slow(reason="kills PostgreSQL and waits for its return")
def test_a_database_that_was_stopped_stays_down_until_it_is_started_and_the_server_goes_on(
    home: Path,
) -> None:
    settings = Settings(home=home)
    engine = database.connect_database(settings)
    database.migrate_database(engine)
    engine.dispose()
    embedded = EmbeddedServer.of(settings)
    assert embedded is not None
    with server_process(settings, COLMLM_LOG_LEVEL="warning") as server:
        await_missing(server.address, NOTHING)
        assert embedded.stop() and embedded.was_stopped
        await_missing(server.address, ["database"])
        time.sleep(1.0)  # the keeper looks several times
        assert embedded.pid() is None
        assert httpx.get(f"{server.address}/healthz").status_code == 200
        database.connect_database(settings).dispose()
        await_missing(server.address, NOTHING)
        log = server.stop()
    assert log.count("the database was stopped") == 1 and "Traceback" not in log, log


def await_missing(address: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 60
    while (found := httpx.get(f"{address}/readyz").json()["missing"]) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
