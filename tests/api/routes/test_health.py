"""The probes: open to whoever may reach the server, and true."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from sqlalchemy import text

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Tuning
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.operations import Operations
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.api.conftest import Connect
from tests.api.generator import LookupGenerator
from tests.fakes import FakeEncoder

FRESH = Tuning(readiness_seconds=-1.0)  # each answer is looked up
FIRST = {
    "corpus": "first",
    "documents": [
        {"id": "one", "text": "Lima is in Peru.", "facts": [{"start": 0, "end": 4, "value": "Lima"}]}
    ],
    "reason": "the first of all",
}


@pytest.fixture
def app(atlas: KnowledgeBase, encoder: FakeEncoder) -> GatedApp:
    return create_app(atlas, encoder, LookupGenerator(atlas, encoder), tuning=Tuning(readiness_seconds=-1.0))


def test_anybody_on_an_allowed_host_may_ask_whether_it_lives(app: GatedApp, connect: Connect) -> None:
    client = connect(app)
    assert (client.get("/healthz").status_code, client.get("/healthz").text) == (200, "ok")
    assert client.get("/readyz").status_code in (200, 503)
    for path in ("/healthz", "/readyz"):
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 421
        assert client.post(path).status_code == 401, "a probe only reads"
    assert client.get("/healthz/more").status_code == 401


def test_ready_is_what_can_answer(atlas: KnowledgeBase, app: GatedApp, connect: Connect) -> None:
    client = connect(app)
    assert client.get("/readyz").json() == {
        "ready": False,
        "missing": ["index"],
        "degraded": [],
    }, "none is open yet"
    atlas.lookups.catch_up()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "missing": [], "degraded": []})


def test_not_ready_says_what_is_missing(
    atlas: KnowledgeBase, settings: Settings, encoder: FakeEncoder, connect: Connect
) -> None:
    atlas.lookups.catch_up()
    operations = Operations.of(atlas, ServerSettings())
    client = connect(create_app(atlas, encoder, operations=operations, tuning=FRESH))
    missing = lambda: client.get("/readyz").json()["missing"]  # noqa: E731
    assert missing() == []
    other = connect(create_app(atlas, FakeEncoder(salt="2")))
    assert other.get("/readyz").json()["missing"] == ["checkpoint of the active keyset"]
    with atlas.engine.begin() as connection:
        connection.execute(text("UPDATE keyset SET state = 'ready'"))
    assert (missing(), client.get("/readyz").json()["degraded"]) == ([], ["active keyset"])
    with atlas.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    assert missing() == ["migrations"]
    operations.drain.begin()
    assert missing() == ["draining"]


def test_a_new_base_is_ready_for_its_first_documents(
    kb: KnowledgeBase, encoder: FakeEncoder, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client = connect(create_app(kb, encoder, tuning=FRESH))
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["degraded"]) == (200, ["active keyset"])
    client.headers["Authorization"] = f"Bearer {new_token('operator')}"
    assert client.post("/v1/documents", json=FIRST).status_code == 201
    kb.keysets.rekey(encoder)
    assert client.get("/readyz").json()["missing"] == ["index"]  # from now on what opens it is waited for
    kb.lookups.catch_up()
    assert client.get("/readyz").json() == {"ready": True, "missing": [], "degraded": []}


def test_an_index_too_far_behind_is_not_ready(
    atlas: KnowledgeBase, settings: Settings, encoder: FakeEncoder, connect: Connect
) -> None:
    atlas.lookups.catch_up()
    client = connect(create_app(atlas, encoder, tuning=FRESH, settings=ServerSettings(ready_lag=1)))
    for value, status in (("Cusco", 200), ("Callao", 503)):
        atlas.facts.edit(1, value, actor="tester", reason="behind")
        assert client.get("/readyz").status_code == status


def test_a_server_goes_on_after_the_next_releases_migration(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    atlas.lookups.catch_up()
    with atlas.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    client = connect(create_app(atlas, encoder))
    assert client.get("/readyz").status_code == 200


def test_a_database_that_is_gone_is_missing_and_the_process_lives(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    atlas.lookups.catch_up()
    client = connect(create_app(atlas, encoder))
    door = atlas.pools["door"]
    door.dispose()
    door.pool = door.pool.__class__(_refuse)
    assert client.get("/readyz").json()["missing"] == ["database"]
    assert client.get("/healthz").status_code == 200


def test_a_database_that_hangs_is_missing_and_does_not_hang_the_probe(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    atlas.lookups.catch_up()
    client = connect(create_app(atlas, encoder, tuning=Tuning(readiness_seconds=-1.0, look_seconds=0.5)))
    assert client.get("/readyz").status_code == 200
    asked = text(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'colmlm door' AND datname = current_database()"
    )
    with atlas.engine.connect() as connection:
        processes = connection.scalars(asked).all()
    assert processes
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        assert client.get("/readyz").json()["missing"] == ["database"]
        assert client.get("/healthz").status_code == 200
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    while atlas.pools["door"].pool.checkedout():  # type: ignore[attr-defined]
        time.sleep(0.01)
    assert client.get("/readyz").status_code == 200


def _refuse() -> None:
    from psycopg import OperationalError

    raise OperationalError("gone")


def test_the_database_is_asked_once_a_second_at_most(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    client = connect(create_app(atlas, encoder, tuning=Tuning(readiness_seconds=60.0)))
    assert client.get("/readyz").json()["missing"] == ["index"]
    atlas.lookups.catch_up()
    assert client.get("/readyz").json()["missing"] == ["index"]
