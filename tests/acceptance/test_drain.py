"""A real server process drains: it gets a signal while it streams."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from colmlm.kb.access.tokens import create_token
from colmlm.kb.jobs.kinds import Check
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.acceptance.server import server_process
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, ingest


@pytest.fixture
def peru(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    return kb


@pytest.fixture
def client(kb: KnowledgeBase) -> httpx.Client:
    with kb.sessions.begin() as session:
        token = create_token(session, "the reader", "reader")
    return httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=30)


def wait_until_ready(client: httpx.Client, address: str) -> None:
    until = time.monotonic() + 30
    while (answer := client.get(f"{address}/readyz")).status_code != 200:
        assert time.monotonic() < until, answer.text
        time.sleep(0.1)


@pytest.mark.slow(reason="starts a server and waits until it has drained")
def test_a_stream_ends_whole_while_the_server_takes_nothing_new_and_leaves_a_snapshot(
    peru: KnowledgeBase, settings: Settings, client: httpx.Client
) -> None:
    for file in settings.index_directory.rglob("keyset-*"):
        file.unlink()
    listen = f"127.0.0.1:{free_port()}"
    variables = {"COLMLM_LOG_FORMAT": "json", "COLMLM_METRICS_LISTEN": listen}
    with server_process(settings, "--pace", "0.5", **variables) as server, client:
        wait_until_ready(client, server.address)
        assert "colmlm_index_open 1.0" in httpx.get(f"http://{listen}/metrics").text, "it takes no key there"
        assert not manifests(settings)
        body = {"prompt": CAPITAL, "stream": True}
        with client.stream("POST", f"{server.address}/v1/generations", json=body) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: piece"
            server.process.send_signal(signal.SIGTERM)
            answers = refused_soon(client, server.address)
            rest = list(lines)
        log = server.process.communicate(timeout=30)[1]
    assert answers == {"/readyz": (503, ["draining"]), "/healthz": (200, None), "/v1/facts": (503, None)}
    assert "event: trace" in rest and "event: error" not in rest
    assert server.process.returncode == 0
    assert manifests(settings), "the index was written"
    assert_is_json_log(log)


@pytest.mark.slow(reason="starts a server and waits until it has drained")
def test_streams_that_wait_end_at_once_and_say_why(
    peru: KnowledgeBase, settings: Settings, client: httpx.Client
) -> None:
    with peru.sessions.begin() as session:
        client.headers["Authorization"] = f"Bearer {create_token(session, 'the auditor', 'auditor')}"
    job = Jobs(peru).submit(Check(), actor="tester")  # no worker runs, so it waits
    with server_process(settings, COLMLM_DRAIN_SECONDS="600") as server, client, ExitStack() as streams:
        wait_until_ready(client, server.address)
        followed = []
        for path, first in (("changes/events", "nothing new"), (f"jobs/{job.job_id}/events", "progress")):
            stream = streams.enter_context(client.stream("GET", f"{server.address}/v1/{path}"))
            followed.append(stream.iter_lines())
            assert first in next(followed[-1])
        server.process.send_signal(signal.SIGTERM)
        ends = [[line for line in lines if line.startswith("event: ")] for lines in followed]
        server.process.communicate(timeout=60)
    assert ends == [["event: draining"]] * 2
    assert server.process.returncode == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def manifests(settings: Settings) -> list[Path]:
    return list(settings.index_directory.rglob("keyset-*.json"))


def refused_soon(client: httpx.Client, address: str) -> dict[str, tuple[int, list[str] | None]]:
    """Gives each path's answer once the server drains; the stream goes on meanwhile."""
    until = time.monotonic() + 5
    while client.get(f"{address}/readyz").status_code == 200:
        assert time.monotonic() < until, "it never drained"
    answers = {}
    for path in ("/readyz", "/healthz", "/v1/facts"):
        answer = client.get(f"{address}{path}")
        missing = answer.json().get("missing") if path == "/readyz" else None
        answers[path] = (answer.status_code, missing)
    return answers


def assert_is_json_log(log: str) -> None:
    lines = [json.loads(line) for line in log.splitlines()]
    streams = [line for line in lines if line.get("route") == "/v1/generations"]
    assert [(line["status"], line["actor"], line["level"]) for line in streams] == [
        (201, "the reader", "info")
    ]
    assert CAPITAL not in log and "Lima" not in log, "what was asked and answered is no field"


@pytest.mark.slow(reason="starts a server and waits until it has drained")
def test_what_runs_for_too_long_is_cut_off(
    peru: KnowledgeBase, settings: Settings, client: httpx.Client
) -> None:
    with server_process(settings, "--pace", "2", COLMLM_DRAIN_SECONDS="0.2") as server, client:
        wait_until_ready(client, server.address)
        body = {"prompt": CAPITAL, "stream": True}
        with (
            pytest.raises(httpx.RemoteProtocolError),
            client.stream("POST", f"{server.address}/v1/generations", json=body) as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines) == "event: piece"
            server.process.send_signal(signal.SIGTERM)
            list(lines)
        server.process.communicate(timeout=30)
    assert server.process.returncode == 0
