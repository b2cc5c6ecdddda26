"""What waits in one limiter keeps nobody else waiting, and a full limiter says which it is."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import anyio
import httpx
import pytest
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware
from sqlalchemy import text

from colmlm.api.app import create_app
from colmlm.api.errors import respond
from colmlm.api.middleware.auth import Right, needs, require_right
from colmlm.api.middleware.gate import GatedApp, LimiterMiddleware, build_gate
from colmlm.api.middleware.limiters import LONGEST_REST, SIZES, Limiter, Limiters, LimiterSize, Tuning
from colmlm.api.settings import ServerSettings
from colmlm.kb.log.audit import CHANGE_LOCK
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import CAPITAL, Client, Connect
from tests.api.generator import LookupGenerator
from tests.api.role_matrix import routes
from tests.api.serving import served
from tests.fakes import FakeEncoder

SMALL = {limiter: LimiterSize(1, 2) for limiter in SIZES}
EDIT = {"value": "Cusco", "reason": "to wait"}


@contextmanager
def log_held(kb: KnowledgeBase) -> Iterator[int]:
    """The change log's lock, held by somebody else; gives the process of the database that holds it."""
    with kb.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CHANGE_LOCK})
        yield connection.scalar(text("SELECT pg_backend_pid()")) or 0


def waiting(kb: KnowledgeBase, num_edits: int) -> bool:
    """Whether so many edits wait for the log."""
    with kb.engine.connect() as connection:
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = "
        here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
        return connection.scalar(text(locks + here)) == num_edits


@pytest.fixture
def keys(new_token: Callable[[str], str]) -> dict[str, dict[str, str]]:
    return {role: {"Authorization": f"Bearer {new_token(role)}"} for role in ("operator", "auditor", "admin")}


def test_everything_else_is_answered_while_edits_wait(
    atlas: KnowledgeBase, encoder: FakeEncoder, keys: dict[str, dict[str, str]]
) -> None:
    """More edits than there are threads; they end when the lock is let go of, and all others before."""
    atlas.lookups.catch_up()
    app = create_app(atlas, encoder, LookupGenerator(atlas, encoder), tuning=Tuning(longest_seconds=0))
    edits = 3 * SIZES[Limiter.edits].threads
    with (
        served(app) as address,
        httpx.Client(base_url=address, headers=keys["operator"], timeout=60) as client,
        ThreadPoolExecutor(edits) as editors,
    ):
        with log_held(atlas):
            edited = [editors.submit(client.patch, "/v1/facts/1", json=EDIT) for _ in range(edits)]
            while not waiting(atlas, SIZES[Limiter.edits].threads):
                pass
            asked = [
                client.get("/healthz"),
                client.get("/readyz"),
                client.get("/metrics"),
                client.get("/v1/facts"),
                client.get("/v1/facts", headers=keys["admin"]),
                client.get("/v1/changes", headers=keys["auditor"]),
                client.get("/v1/changes/events", params={"after": 0}),
                client.post("/v1/lookups", json={"questions": [CAPITAL]}),
                client.post("/v1/lookups", json={"questions": [CAPITAL], "as_of": 3}),
                client.post("/v1/generations", json={"prompt": CAPITAL}),
                client.post("/v1/uploads", params={"name": "a.txt"}, content=b"text"),
            ]
            assert [answer.status_code for answer in asked if answer.status_code >= 300] == []
            assert not any(edit.done() for edit in edited)
        assert {edit.result().status_code for edit in edited} == {200}


def test_an_edit_that_waited_in_vain_is_told_who_holds_the_log(
    atlas: KnowledgeBase, connect: Connect
) -> None:
    atlas.settings = replace(atlas.settings, lock_timeout_seconds=0.05)
    operator = connect(create_app(atlas), "operator")
    with log_held(atlas) as pid:
        answer = operator.patch("/v1/facts/1", json=EDIT)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    problem = answer.json()
    assert problem["type"] == "urn:colmlm:LogHeld"
    assert f"colmlm (process {pid} of the database" in problem["detail"]
    assert operator.patch("/v1/facts/1", json=EDIT).status_code == 200


def test_a_row_that_is_locked_is_not_waited_for_without_end(atlas: KnowledgeBase, connect: Connect) -> None:
    atlas.settings = replace(atlas.settings, lock_timeout_seconds=0.05)
    operator = connect(create_app(atlas), "operator")
    with atlas.engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM fact_version WHERE fact_id = 1 FOR UPDATE"))
        answer = operator.patch("/v1/facts/1", json=EDIT)
    assert answer.status_code == 503 and answer.json()["type"] == "urn:colmlm:LockHeld"
    assert "fact_version" in answer.json()["detail"]


def test_a_lookup_does_not_wait_without_end_for_a_table_that_is_rewritten(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    limited = replace(atlas.settings, lock_timeout_seconds=0.05)
    with KnowledgeBase.open(limited) as kb:
        kb.lookups.catch_up()
        reader = connect(create_app(kb, encoder), "reader")
        with atlas.engine.begin() as connection:
            connection.execute(text("LOCK TABLE fact_version IN ACCESS EXCLUSIVE MODE"))
            answer = reader.post("/v1/lookups", json={"questions": [CAPITAL]})
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:colmlm:LockHeld")
        assert reader.post("/v1/lookups", json={"questions": [CAPITAL]}).status_code == 200


def test_a_statement_that_runs_too_long_is_stopped(atlas: KnowledgeBase, connect: Connect) -> None:
    atlas.settings = replace(atlas.settings, statement_timeout_seconds=0.05, lock_timeout_seconds=0)
    operator = connect(create_app(atlas), "operator")
    with log_held(atlas):
        answer = operator.patch("/v1/facts/1", json=EDIT)
    assert answer.status_code == 503 and answer.json()["type"] == "urn:colmlm:StatementTooLong"
    assert answer.headers["retry-after"] == "1"


def test_what_is_no_request_may_take_as_long_as_it_takes(atlas: KnowledgeBase) -> None:
    create_app(atlas)
    limits = text("SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
    with atlas.engine.connect() as own, atlas.pools["requests"].connect() as asked:
        assert own.execute(limits).one() == ("0", "0")
        assert asked.execute(limits).one() == ("1min", "10s")


def test_a_full_limiter_says_which_it_is_and_the_others_go_on(
    atlas: KnowledgeBase, encoder: FakeEncoder, keys: dict[str, dict[str, str]]
) -> None:
    atlas.lookups.catch_up()
    app = create_app(atlas, encoder, tuning=Tuning(limiters=SMALL | {Limiter.auth: SIZES[Limiter.auth]}))
    with (
        served(app) as address,
        httpx.Client(base_url=address, headers=keys["operator"], timeout=60) as client,
        ThreadPoolExecutor(2) as editors,
    ):
        with log_held(atlas):
            edited = [editors.submit(client.patch, "/v1/facts/1", json=EDIT) for _ in range(2)]
            while app.gate.limiters.slots_taken()[Limiter.edits] < 2:
                pass
            answer = client.patch("/v1/facts/1", json=EDIT)
            assert answer.status_code == 503 and "All 2 slots for edits are taken" in answer.json()["detail"]
            assert answer.headers["retry-after"] == "1"
            assert client.post("/v1/lookups", json={"questions": [CAPITAL]}).status_code == 200
            told = client.get("/metrics").text
            assert 'colmlm_limiter_refused_total{limiter="edits"} 1.0' in told
            assert 'colmlm_limiter_slots_taken{limiter="edits"} 2.0' in told
        assert {edit.result().status_code for edit in edited} == {200}


@contextmanager
def unfinished(address: str, count: int, request: str, **headers: str) -> Iterator[None]:
    """So many requests whose bodies were begun and do not go on; the server has them all."""
    host, port = address.removeprefix("http://").split(":")
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n{lines}\r\n"
    with ExitStack() as opened:
        for _ in range(count):
            sent = opened.enter_context(socket.create_connection((host, int(port))))
            sent.sendall(f"{head}{{".encode())
        for _ in range(10):  # each is answered after what came before it was begun
            assert httpx.get(f"{address}/healthz").status_code == 200
        yield


def test_a_body_that_does_not_come_takes_no_slot(
    atlas: KnowledgeBase, encoder: FakeEncoder, keys: dict[str, dict[str, str]]
) -> None:
    """Those whose bodies are waited for may be strangers, where keys are checked."""
    operator = keys["operator"]
    atlas.lookups.catch_up()
    app = create_app(atlas, encoder, LookupGenerator(atlas, encoder), tuning=Tuning(limiters=SMALL))
    with (
        served(app) as address,
        httpx.Client(base_url=address, headers=operator, timeout=60) as client,
        unfinished(address, 4, "POST /session"),
        unfinished(address, 4, "PATCH /v1/facts/1", **operator),
        unfinished(address, 4, "POST /v1/lookups", **operator),
        unfinished(address, 4, "POST /v1/generations", **operator),
    ):
        answers = (
            client.get("/v1/facts"),
            client.patch("/v1/facts/1", json=EDIT),
            client.post("/v1/lookups", json={"questions": [CAPITAL]}),
            client.post("/v1/generations", json={"prompt": CAPITAL}),
        )
        assert [answer.status_code for answer in answers] == [200, 200, 200, 201]


def test_a_sign_in_that_is_too_large_is_refused(app: GatedApp) -> None:
    with served(app) as address:
        answer = httpx.post(f"{address}/session", data={"key": "x" * 20_000}, headers={"Origin": address})
    assert answer.status_code == 413


def test_a_full_limiter_speaks_as_its_route_does(app: GatedApp, reader: Client) -> None:
    limiters = app.gate.limiters
    with ExitStack() as taken:
        for _ in range(SIZES[Limiter.decoding].slots):
            taken.enter_context(limiters.slot(Limiter.decoding))
        answer = reader.post("/v1/completions", json={"model": "x", "prompt": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    error = answer.json()["error"]
    assert error["code"] == "busy" and "slots for decoding are taken" in error["message"]


def test_a_key_that_is_being_rotated_still_asks(atlas: KnowledgeBase, reader: Client) -> None:
    with atlas.engine.begin() as connection:
        connection.execute(text("UPDATE api_key SET rotated_at = now()"))
        assert reader.get("/v1/facts").status_code == 200


def test_a_thread_outside_of_every_limiter_is_refused(kb: KnowledgeBase, connect: Connect) -> None:
    @get("/by-hand", opt=needs(Right.read, Limiter.at_once), sync_to_thread=True)
    def by_hand() -> str:
        return "from some thread"

    app = GatedApp(
        build_gate(kb, ServerSettings(), Limiters()),
        Litestar(
            [by_hand],
            guards=[require_right],
            middleware=[DefineMiddleware(LimiterMiddleware)],
            exception_handlers={Exception: respond},
        ),
    )
    assert connect(app, "reader").get("/by-hand").status_code == 500


def test_no_route_runs_in_a_thread_without_a_limiter(app: GatedApp) -> None:
    at_once = [route.handler for route in routes(app) if route.handler.opt.get("limiter") is Limiter.at_once]
    assert at_once and not any(handler.sync_to_thread for handler in at_once)


def test_slots_are_counted_and_given_back() -> None:
    limiters = Limiters({limiter: LimiterSize(1, 1) for limiter in SIZES})
    with limiters.slot(Limiter.edits):
        assert limiters.slots_taken()[Limiter.edits] == 1
    assert set(limiters.slots_taken().values()) == {0}


def test_long_reads_rest_as_long_as_they_worked_while_the_present_is_asked() -> None:
    rests: list[float] = []
    limiters = Limiters(sleep=rests.append)

    async def two_long_reads() -> None:
        for _ in range(2):
            await limiters.run(Limiter.long_reads, time.sleep, 0.05)

    anyio.run(two_long_reads)
    assert rests == []
    with limiters.slot(Limiter.lookups):
        with limiters.move_slot(Limiter.long_reads):  # a lookup in the past is none of the present
            anyio.run(two_long_reads)
        assert rests == [] and limiters.slots_taken()[Limiter.lookups] == 1
        anyio.run(two_long_reads)
    assert len(rests) in (1, 2) and 0 < max(rests) <= LONGEST_REST


def test_threads_of_a_closed_limiter_end_and_come_back(app: GatedApp, connect: Connect) -> None:
    earlier = set(threading.enumerate())  # of tests before this one, some of which are ending
    client = connect(app, "reader")
    assert client.get("/v1/facts").status_code == 200
    served = {one for one in threading.enumerate() if one not in earlier and one.name.startswith("colmlm ")}
    assert served
    app.gate.limiters.close()
    for thread in served:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in served)
    assert client.get("/v1/facts").status_code == 200
