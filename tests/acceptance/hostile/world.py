"""The target of hostile cases: a served base with a server, a worker and tokens, and checks of every answer."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from colmlm.kb import interpreter
from colmlm.kb.access.tokens import create_token
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.servers import variables_of
from tests.acceptance.server import ServerProcess, server_process
from tests.fakes import FakeEncoder
from tests.kb.corpora import document, ingest
from tests.places import ROOT
from tests.tiny import tiny_checkpoint

ROLES = ("admin", "operator", "reader")
PASSING = (503, 507)  # statuses of a server that cannot answer now; it sends a problem document with them
PATIENCE_SECONDS = 60.0  # of a client, on a busy machine
RAW_SECONDS = 4.0  # for an answer to bytes that may not be a whole request
LIMITS = {"COLMLM_DOCUMENT_SECONDS": "4", "COLMLM_DOCUMENT_MEMORY_MB": "256"}
_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3})", re.MULTILINE)


class Wrong(AssertionError):
    """An answer that a server should never give, whatever the request was."""


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def said(self) -> Any:
        return json.loads(self.body)

    @property
    def cookie(self) -> str:
        """The cookie that a browser would send back."""
        return next(
            (v.partition(";")[0] for name, v in self.headers.items() if name.lower() == "set-cookie"), ""
        )


@dataclass(slots=True)
class Told:
    """The lines of a process's log, read as they are written, so that the process never waits for a reader."""

    stream: Any
    lines: list[str] = field(default_factory=list)
    _reading: threading.Thread | None = None

    def begin(self) -> None:
        self._reading = threading.Thread(target=lambda: self.lines.extend(self.stream), daemon=True)
        self._reading.start()

    def tracebacks(self) -> Counter[str]:
        """Counts the errors of all tracebacks. One in JSON is a line; another ends at the first unindented line."""
        found: Counter[str] = Counter()
        open_ = False
        for line in self.lines:
            if '"exception": "Traceback' in line:
                found[json.loads(line)["exception"].strip().rpartition("\n")[2][:300]] += 1
            elif line.startswith("Traceback"):
                open_ = True
            elif open_ and not line.startswith(" "):
                found[line.strip()[:300]] += 1
                open_ = False
        return found


@dataclass(slots=True)
class World:
    """The served base. `erased` values must be nowhere at the end; each race runs for `rounds` rounds."""

    kb: KnowledgeBase
    server: ServerProcess
    worker: subprocess.Popen[str]
    keyset_id: int
    tokens: dict[str, str]
    logs: tuple[Told, Told]
    rounds: int
    erased: list[str] = field(default_factory=list)
    _made: int = 0
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.server.address.removeprefix("http://").partition(":")
        return host, int(port)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        role: str = "admin",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Sends a request with a token and gives the answer. Raises `Wrong` for one that no server should give."""
        known = {"Authorization": f"Bearer {token or self.tokens[role]}", "Content-Type": "application/json"}
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.anonymous(method, path, sent, {**known, **(headers or {})})

    def anonymous(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Sends a request with only these headers and gives the answer. Raises `Wrong` as `ask` does."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, body, dict(headers))
            got = connection.getresponse()
            answer = Answer(got.status, got.read(), dict(got.getheaders()))
        finally:
            connection.close()
        return checked(answer, f"{method} {path[:80]}")

    def raw(self, request: bytes, *, half_close: bool = False) -> list[int]:
        """Gives the statuses of the answers to these bytes; none if the server closes the connection or waits for more.

        `half_close` tells the server at once that nothing more will be sent.
        """
        got = b""
        with socket.create_connection(self.address, timeout=RAW_SECONDS) as connection:
            try:
                connection.sendall(request)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
                while block := connection.recv(1 << 16):
                    got += block
            except (TimeoutError, ConnectionError):
                pass  # the server may close the connection on such a request, or wait for the rest of it
        statuses = [int(status) for status in _STATUS.findall(got)]
        for status in statuses:
            if status >= 500 and status not in PASSING:
                raise Wrong(f"{status} for {request[:80]!r}: {got[:300]!r}")
        return statuses

    def fact(self, about: str) -> tuple[int, str, str]:
        """Adds a fact with a key: gives its id, its question and its value, which occurs nowhere else."""
        with self._making:
            self._made += 1
            name = f"{about} {self._made}"
        value, question = f"hidden {name} of Lundvik", f"What is {name}?"
        body = {"question": question, "value": value, "reason": "hostile"}
        answer = self.ask("POST", "/v1/facts", body)
        if answer.status >= 300:
            raise Wrong(f"no fact: {answer.status} {answer.body[:200]!r}")
        return answer.said["fact_ids"][0], question, value

    def keyset(self) -> int:
        """Makes a keyset of another model, with a key for every fact."""
        with self._making:
            self._made += 1
            salt = str(self._made)
        return self.kb.keysets.rekey(FakeEncoder(salt=salt)).keyset_id

    def lives(self) -> None:
        """Raises `Wrong` unless both processes run and the probes answer."""
        if self.server.process.poll() is not None or self.worker.poll() is not None:
            raise Wrong(f"ended: server {self.server.process.poll()}, worker {self.worker.poll()}")
        if (status := self.ask("GET", "/healthz").status) != 200:
            raise Wrong(f"/healthz gives {status}")
        until = time.monotonic() + PATIENCE_SECONDS
        while (answer := self.ask("GET", "/readyz")).status != 200:
            if time.monotonic() > until:
                raise Wrong(f"/readyz gives {answer.status}: {answer.body[:200]!r}")
            time.sleep(0.5)

    def peak_mb(self) -> int:
        """Gives the peak memory of the server in MB."""
        return self.memory_mb("VmHWM")

    def memory_mb(self, kind: str = "VmRSS") -> int:
        """Give the memory of the server in MB."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith(kind))
        return int(line.split()[1]) // 1024


def checked(answer: Answer, what: str) -> Answer:
    if answer.status < 500:
        return answer
    kind = next((v for name, v in answer.headers.items() if name.lower() == "content-type"), "")
    if answer.status in PASSING and (kind.startswith("application/problem+json") or what.endswith("/readyz")):
        return answer
    raise Wrong(f"{answer.status} for {what}: {answer.body[:300]!r}")


@contextmanager
def served(settings: Settings, rounds: int) -> Iterator[World]:
    """Opens a world on the empty, migrated database of `settings`."""
    with ExitStack() as stack:
        kb = stack.enter_context(KnowledgeBase.open(settings))
        keyset_id = _prepare(kb)
        with kb.sessions.begin() as session:
            tokens = {role: create_token(session, f"hostile {role}", role) for role in ROLES}
        server = stack.enter_context(server_process(settings, COLMLM_LOG_LEVEL="warning"))
        worker = stack.enter_context(_worker(settings))
        logs = Told(server.process.stderr), Told(worker.stderr)
        for log in logs:
            log.begin()
        world = World(kb, server, worker, keyset_id, tokens, logs, rounds)
        world.lives()
        yield world


def _prepare(kb: KnowledgeBase) -> int:
    """Ingests facts, and activates the keyset that answers for them."""
    ingest(
        kb, *(document(f"d{n}", f"Text {n} says ", (f"value {n}", f"Question {n}?"), ".") for n in range(50))
    )
    return kb.keysets.set_threshold(kb.keysets.rekey(FakeEncoder()).keyset_id, 0.9).keyset_id


@contextmanager
def _worker(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """Starts a worker with tiny weights: the cases start jobs that make keys, and are not about the released ones."""
    command = interpreter.command("-m", "colmlm.cli", "worker")
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        weights = {"COLMLM_CHECKPOINT": str(tiny_checkpoint(Path(folder)))}
        env = {**os.environ, **variables_of(settings), **LIMITS, **weights}
        with subprocess.Popen(command, cwd=ROOT, env=env, text=True, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()
