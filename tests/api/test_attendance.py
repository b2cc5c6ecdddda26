"""A worker that is dead, or dies again and again, is told wherever the server's state is; answers go on without it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from colmlm.api.app import create_app
from colmlm.api.middleware.limiters import Tuning
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.operations import Operations
from colmlm.kb.jobs.kinds import Check
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.tickets import WorkerState, report_no_worker
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Connect
from tests.api.watch.test_metrics import samples, value
from tests.fakes import FakeEncoder

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(hours=1)
BEGINS = WorkerState(running=True, since=NOW)
FAILS = WorkerState(
    running=True,
    since=NOW,
    failures=3,
    restarts=4,
    exit_code=5,
    last_error=("error: No database answers at <there>", "the last line"),
)
DEAD = WorkerState(running=False, since=LONG_AGO, failures=1, restarts=1, exit_code=-9)
HANGS = WorkerState(running=True, since=LONG_AGO)


@pytest.fixture
def asked(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect, new_token: Callable[[str], str]
) -> Any:
    """Asks a server with a worker in this state."""
    atlas.lookups.catch_up()

    tokens = {role: new_token(role) for role in ("reader", "admin")}

    def ask(state: WorkerState | None, role: str = "reader") -> Any:
        if state is not None and state.since == NOW:  # of this module's import, which may be long ago
            state = replace(state, since=datetime.now(UTC))
        operations = Operations.of(
            atlas, ServerSettings(), worker=(lambda: state) if state else report_no_worker
        )
        fresh = Tuning(readiness_seconds=-1.0)
        client = connect(create_app(atlas, encoder, operations=operations, tuning=fresh))
        client.headers["Authorization"] = f"Bearer {tokens[role]}"
        return client

    return ask


def heard_of(kb: KnowledgeBase) -> None:
    with kb.engine.begin() as connection:
        connection.execute(text("INSERT INTO procrastinate_workers DEFAULT VALUES"))


def test_a_worker_that_is_not_well_degrades_a_server_that_stays_ready(asked: Any) -> None:
    for state, is_degraded in ((BEGINS, False), (FAILS, True), (DEAD, True), (HANGS, True), (None, False)):
        answer = asked(state).get("/readyz")
        assert answer.status_code == 200, state
        assert answer.json()["degraded"] == (["worker"] if is_degraded else []), state


def test_a_worker_that_is_heard_of_is_well_and_one_that_restarts_is_not(
    asked: Any, atlas: KnowledgeBase
) -> None:
    heard_of(atlas)
    assert asked(HANGS).get("/readyz").json()["degraded"] == []
    assert asked(FAILS).get("/readyz").json()["degraded"] == ["worker"]


def test_jobs_that_wait_for_a_worker_elsewhere_degrade(asked: Any, atlas: KnowledgeBase) -> None:
    Jobs(atlas).submit(Check(), actor="ana")
    assert asked(None).get("/readyz").json()["degraded"] == [], "it may be taken any moment"
    with atlas.engine.begin() as connection:
        connection.execute(text("UPDATE job SET created_at = created_at - interval '1 minute'"))
    assert asked(None).get("/readyz").json()["degraded"] == ["worker"]
    heard_of(atlas)
    assert asked(None).get("/readyz").json()["degraded"] == [], "it is busy"


def test_health_and_metrics_count_its_ends_and_tell_no_line_of_it(asked: Any, atlas: KnowledgeBase) -> None:
    heard_of(atlas)
    client = asked(FAILS)
    health = client.get("/health").json()
    assert (health["degraded"], health["workers"]) == (["worker"], 1)
    assert {**health["worker"], "since": None} == {
        "running": True, "since": None, "failures": 3, "restarts": 4, "exit_code": 5
    }  # fmt: skip
    found = samples(client)
    assert value(found, "colmlm_worker_up") == 1 and value(found, "colmlm_workers") == 1
    assert value(found, "colmlm_worker_restarts_total") == 4
    assert "the last line" not in client.get("/health").text + client.get("/metrics").text


def test_the_page_status_shows_admins_what_it_said_last(asked: Any) -> None:
    page = asked(FAILS, "admin").get("/console/status").text
    assert "the last line" in page and "three times in a row, last with code 5" in page
    assert "&lt;there&gt;" in page and "<there>" not in page
    assert "jobs are not done" in page
    assert "What it said last" not in asked(BEGINS, "admin").get("/console/status").text
    read = asked(FAILS).get("/console/status").text
    assert "What it said last" not in read and "last with code 5" in read
