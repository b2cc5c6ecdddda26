from __future__ import annotations

import time
from dataclasses import replace

import httpx
import pytest

from colmlm.kb.store import database
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.servers import our_server
from colmlm.lab.faults import served
from colmlm.lab.faults.harness import faults_in, own_database

NOTHING: list[str] = []


@pytest.mark.slow(reason="kills PostgreSQL and waits for its return")
def test_a_killed_database_comes_back_by_itself_and_no_acknowledged_edit_is_lost() -> None:
    with own_database() as settings:
        found = served.database(settings, kills=2)
    assert faults_in(found) == [], found
    assert found["edits_acknowledged"] > 0 and found["requests_refused"] > 0, found


@pytest.mark.slow(reason="kills PostgreSQL and waits for its return")
def test_a_database_that_was_stopped_stays_down_until_it_is_started_and_the_server_goes_on() -> None:
    with own_database() as own:
        settings = replace(own, database_url=None)
        embedded, log = EmbeddedServer.of(settings), settings.home / "server.log"
        assert embedded is not None
        with our_server(settings, with_model=False, log=log) as port:
            address = f"http://127.0.0.1:{port}"
            await_missing(address, NOTHING)
            assert embedded.stop() and embedded.was_stopped
            await_missing(address, ["database"])
            time.sleep(1.0)  # the keeper looks several times
            assert embedded.pid() is None
            assert httpx.get(f"{address}/healthz").status_code == 200
            database.connect_database(settings).dispose()
            await_missing(address, NOTHING)
        said = log.read_text()
    assert said.count("the database was stopped") == 1 and "Traceback" not in said, said


def await_missing(address: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 60
    while (found := httpx.get(f"{address}/readyz").json()["missing"]) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


@pytest.mark.slow(reason="works on a real server for seconds")
def test_nothing_keeps_what_is_said_and_planned_while_it_is_erased(settings: Settings) -> None:
    found = served.erasure(settings, erasures=12, decoders=3)
    assert faults_in(found) == [], found
    assert min(found[name] for name in ("records", "spliced", "plans")) > 0, found
