"""`colmlm serve --workers 2`, for real: a killed one is replaced, a restart refuses nothing, and they count as one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import httpx
import psutil
import pytest

from colmlm.kb import interpreter
from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.servers import variables_of
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, ingest
from tests.places import PYTHONPATH, ROOT

SECONDS = 120  # a busy machine may take long for anything


@dataclass(frozen=True, slots=True)
class Servers:
    process: subprocess.Popen[str]
    address: str

    def pids(self) -> set[int]:
        """The processes that serve. One more only attends, and listens nowhere."""
        children = psutil.Process(self.process.pid).children()
        return {child.pid for child in children if has(child, psutil.CONN_LISTEN)}

    def get(self, path: str, secret: str | None = None) -> httpx.Response:
        """Asks on a connection of its own, which the system gives to any of the processes."""
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return httpx.get(f"{self.address}{path}", headers=headers, timeout=SECONDS)

    def wait(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not until():
            assert time.monotonic() < end
            time.sleep(0.05)

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz").status_code == 200
        except httpx.ConnectError:  # it does not listen yet
            return False


@contextmanager
def serving(settings: Settings, **variables: str) -> Iterator[Servers]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    interpreter.shut_out_current_directory()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COLMLM_")}
    env = {
        **inherited,
        "PYTHONPATH": PYTHONPATH,
        "COLMLM_LOG_LEVEL": "warning",
        **variables_of(settings),
        **variables,
    }
    words = ("serve", "--port", str(port), "--no-model", "--no-worker", "--workers", "2")
    command = interpreter.command("-m", "colmlm.cli", *words)
    with subprocess.Popen(command, cwd=ROOT, env=env, text=True, stderr=subprocess.PIPE) as process:
        try:
            yield Servers(process, f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                _, log = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
    assert process.returncode == 0, log


@pytest.fixture
def peru(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)


@pytest.fixture
def secret(kb: KnowledgeBase) -> str:
    with kb.sessions.begin() as session:
        return create_token(session, "the reader", "reader")


def value_of(metrics: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.slow(reason="starts four servers at a port")
@pytest.mark.usefixtures("peru")
def test_they_count_and_limit_as_one_and_a_killed_one_is_replaced(
    kb: KnowledgeBase, settings: Settings, secret: str
) -> None:
    with kb.sessions.begin() as session:
        hasty = create_token(session, "hasty", "reader", rate_limit=3)
    with serving(settings) as servers:
        servers.wait(servers.is_ready)
        with ExitStack() as connected:
            where = ("127.0.0.1", int(servers.address.rpartition(":")[2]))
            for _ in range(20):
                connected.enter_context(socket.create_connection(where))
            servers.wait(
                lambda: all(has(psutil.Process(pid), psutil.CONN_ESTABLISHED) for pid in servers.pids())
            )
        began = time.monotonic()
        statuses = [servers.get("/v1/stats", hasty).status_code for _ in range(30)]
        granted = statuses.count(200)
        assert 3 <= granted <= 3 + (time.monotonic() - began) * 3 / 60 + 1
        assert statuses.count(429) == 30 - granted
        scrapes = [servers.get("/metrics", secret).text for _ in range(20)]
        asked = 'colmlm_http_requests_total{{method="GET",route="{}",status="{}"}}'
        assert {value_of(text, asked.format("/v1/stats", 200)) for text in scrapes} == {granted}

        killed = min(servers.pids())
        os.kill(killed, signal.SIGKILL)
        servers.wait(lambda: killed not in servers.pids() and len(servers.pids()) == 2)
        servers.wait(servers.is_ready)
        assert {servers.get("/v1/stats", secret).status_code for _ in range(20)} == {200}
        text = servers.get("/metrics", secret).text
        assert value_of(text, asked.format("/v1/stats", 200)) == granted + 20, (
            "what the killed one counted is kept"
        )


def has(process: psutil.Process, status: str) -> bool:
    with suppress(psutil.Error):  # it may end meanwhile
        return any(one.status == status for one in process.net_connections("tcp"))
    return False


@pytest.mark.slow(reason="starts four servers at a port")
@pytest.mark.usefixtures("peru")
def test_a_restart_one_by_one_refuses_nothing(settings: Settings, secret: str) -> None:
    with serving(settings) as servers:
        servers.wait(servers.is_ready)
        before = servers.pids()
        over = threading.Event()
        wrong: list[str] = []
        answered: list[str] = []

        def ask(*, keeps: bool) -> None:
            headers = {"Authorization": f"Bearer {secret}"}
            with httpx.Client(base_url=servers.address, headers=headers, timeout=SECONDS) as client:
                while not over.is_set():
                    try:
                        answer = client.get("/v1/stats") if keeps else servers.get("/v1/stats", secret)
                        (answered if answer.status_code == 200 else wrong).append(str(answer.status_code))
                    except httpx.HTTPError as error:
                        wrong.append(repr(error))

        threads = [threading.Thread(target=ask, kwargs={"keeps": keeps}) for keeps in (True, True, False)]
        for thread in threads:
            thread.start()
        try:
            servers.process.send_signal(signal.SIGHUP)
            servers.wait(lambda: not before & servers.pids())
            assert servers.is_ready()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert wrong == [] and answered
        assert len(servers.pids()) == 2
