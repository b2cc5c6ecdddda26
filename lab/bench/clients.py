"""Sends requests over HTTP and times them, in a process apart from the server's, or is a process that opens a base.

    python -m colmlm.lab.bench.clients lookups < load.json
    python -m colmlm.lab.bench.clients completions < load.json
    python -m colmlm.lab.bench.clients reopen HOME CHECKPOINT_ID

Of lookups one thread keeps all connections by raw sockets and requests that are put together beforehand, so that a
request costs it some hundredths of a millisecond and the server is what is measured. In a closed loop each client sends
as soon as it was answered. In an open one requests are due at a rate, whatever the server does, and are timed from when
they were due.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from colmlm.lab.bench.machine import milliseconds

ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """The load to send: each body in turn to `path`, on `clients` connections for `seconds` seconds.

    `rate` is how many are due in a second (0: a closed loop).
    """

    host: str
    port: int
    path: str
    headers: dict[str, str]
    bodies: list[str]
    clients: int
    seconds: float
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class HttpFigures:
    """The results. Latencies are of the requests that got 200, in milliseconds; `errors` counts the others."""

    clients: int
    requests: int
    errors: int
    per_second: float
    p50_ms: float
    p99_ms: float
    p999_ms: float


@dataclass(slots=True)
class _Client:
    """One connection, and the request on it."""

    load: HttpLoad
    connection: socket.socket = field(init=False)
    received: bytearray = field(default_factory=bytearray)
    due: float = 0.0

    def __post_init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        self.connection = socket.create_connection((self.load.host, self.load.port), ANSWER_SECONDS)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received.clear()

    def send(self, request: bytes, due: float) -> None:
        self.due = due
        self.connection.sendall(request)

    def receive(self) -> int | None:
        """Give the status of the answer once all of it is there; 0 where the connection ended."""
        try:
            part = self.connection.recv(1 << 16)
        except OSError:
            part = b""
        if not part:
            return 0
        self.received += part
        if (end := self.received.find(b"\r\n\r\n")) < 0:
            return None
        head = bytes(self.received[:end]).lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or 0)
        if len(self.received) < end + 4 + length:
            return None
        self.received.clear()
        return int(head[9:12])


def measure(load: HttpLoad) -> HttpFigures:
    """Send the load and give its figures. The first request of each connection is not counted."""
    requests = [_request(load, body) for body in load.bodies]
    clients = [_Client(load) for _ in range(load.clients)]
    for client in clients:
        client.send(requests[0], 0.0)
        while client.receive() is None:
            pass
    started = time.perf_counter()
    seconds, errors = _Run(load, requests, clients, started).run()
    took = time.perf_counter() - started
    for client in clients:
        client.connection.close()
    return HttpFigures(
        clients=load.clients,
        requests=len(seconds),
        errors=errors,
        per_second=len(seconds) / took,
        p50_ms=milliseconds(seconds, 50),
        p99_ms=milliseconds(seconds, 99),
        p999_ms=milliseconds(seconds, 99.9),
    )


class _Run:
    """The loop that sends and receives until the time is up and all that was sent is answered."""

    def __init__(self, load: HttpLoad, requests: list[bytes], clients: list[_Client], started: float) -> None:
        self.load, self.requests = load, requests
        self.until, self.next_due = started + load.seconds, started
        self.idle, self.due = deque(clients), deque[float]()
        self.sent = 0
        self.seconds: list[float] = []
        self.errors = 0

    def run(self) -> tuple[list[float], int]:
        """Give the seconds of each request that got 200, and the number of the others."""
        with selectors.DefaultSelector() as waiting:
            while True:
                self._send(waiting)
                now = time.perf_counter()
                if now >= self.until and not waiting.get_map() and not self.due:
                    return self.seconds, self.errors
                pause = max(0.0, self.next_due - now) if self.load.rate and now < self.until else 1.0
                for key, _ in waiting.select(pause):
                    self._receive(waiting, key.data)

    def _send(self, waiting: selectors.BaseSelector) -> None:
        now = time.perf_counter()
        if not self.load.rate:
            if now < self.until:
                self.due.extend([now] * (len(self.idle) - len(self.due)))
        else:
            while self.next_due <= min(now, self.until):
                self.due.append(self.next_due)
                self.next_due += 1 / self.load.rate
        while self.due and self.idle:
            client = self.idle.popleft()
            client.send(self.requests[self.sent % len(self.requests)], self.due.popleft())
            self.sent += 1
            waiting.register(client.connection, selectors.EVENT_READ, client)

    def _receive(self, waiting: selectors.BaseSelector, client: _Client) -> None:
        if (status := client.receive()) is None:
            return
        waiting.unregister(client.connection)
        if status == 200:
            self.seconds.append(time.perf_counter() - client.due)
        else:
            self.errors += 1
        if status == 0:
            client.connection.close()
            client.connect()
        self.idle.append(client)


def _request(load: HttpLoad, body: str) -> bytes:
    sent = body.encode()
    headers = {"Host": f"{load.host}:{load.port}", **load.headers, "Content-Length": str(len(sent))}
    lines = [f"POST {load.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + sent


# Clients that have prompts completed as streams, one after another, each in a thread of its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingLoad:
    """The load: `clients` that stream completions of `prompts` in turn for `seconds`, beside one of `long` prompts."""

    port: int
    token: str
    clients: int
    seconds: float
    max_tokens: int
    prompts: list[str]
    long: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingFigures:
    """Report what `clients` that write at once measured.

    `ttft` is the time from a request to its first piece, `between` that from a piece to the next, both medians in
    milliseconds. A completion has `tokens_each` tokens of the model's own on average, and `refused` counts answers
    other than 200. Where prompts were long, `long_prompts` of them were read meanwhile.
    """

    clients: int
    completions: int
    tokens_each: float
    refused: int
    tokens_per_second: float
    ttft_p50_ms: float
    between_p50_ms: float
    between_p99_ms: float
    long_prompts: int


@dataclass(slots=True)
class _Seen:
    completions: int = 0
    refused: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


def measure_writing(load: WritingLoad) -> WritingFigures:
    """Send the load and give its figures."""
    starting = threading.Barrier(load.clients + bool(load.long) + 1)
    over = threading.Event()
    seen = [_Seen() for _ in range(load.clients)]
    threads = [
        threading.Thread(target=_write, args=(load, n, one, starting, over)) for n, one in enumerate(seen)
    ]
    long = _Seen()
    if load.long:
        threads.append(threading.Thread(target=_long_prompts, args=(load, long, starting, over)))
    for thread in threads:
        thread.start()
    starting.wait()
    began = time.perf_counter()
    over.wait(load.seconds)
    over.set()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    between = [gap for one in seen for gap in one.between]
    first = [wait for one in seen for wait in one.first]
    return WritingFigures(
        clients=load.clients,
        completions=(completions := sum(one.completions for one in seen)),
        tokens_each=sum(one.tokens for one in seen) / max(1, completions),
        refused=sum(one.refused for one in [*seen, long]),
        tokens_per_second=sum(one.tokens for one in seen) / took,
        ttft_p50_ms=milliseconds(first, 50),
        between_p50_ms=milliseconds(between, 50),
        between_p99_ms=milliseconds(between, 99),
        long_prompts=long.completions,
    )


def _write(
    load: WritingLoad, number: int, seen: _Seen, starting: threading.Barrier, over: threading.Event
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", load.port, timeout=600)
    starting.wait()
    while not over.is_set():
        _complete(connection, load, load.prompts[number % len(load.prompts)], load.max_tokens, seen)
        number += 1
    connection.close()


def _long_prompts(load: WritingLoad, seen: _Seen, starting: threading.Barrier, over: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", load.port, timeout=600)
    starting.wait()
    for prompt in load.long:
        if not over.is_set():
            _complete(connection, load, prompt, 1, seen)
    connection.close()


def _complete(
    connection: http.client.HTTPConnection,
    load: WritingLoad,
    prompt: str | list[int],
    max_tokens: int,
    seen: _Seen,
) -> None:
    asked = {
        "model": "colmlm",
        "temperature": 0,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "min_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "on_miss": "continue",
    }
    headers = {"Authorization": f"Bearer {load.token}", "Content-Type": "application/json"}
    began = before = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(asked), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        answer.read()
        seen.refused += 1
        return
    had_one = False
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        now, chunk = time.perf_counter(), json.loads(line[6:])
        if chunk.get("usage"):
            seen.tokens += chunk["usage"]["completion_tokens"]
        elif _has_text(chunk):
            (seen.between if had_one else seen.first).append(now - (before if had_one else began))
            before, had_one = now, True
    seen.completions += 1


def _has_text(chunk: dict[str, Any]) -> bool:
    return any(choice["text"] for choice in chunk.get("choices", []))


def reopen(home: Path, checkpoint_id: str, *, leave: bool) -> None:
    """Open a knowledge base, answer one lookup, and print the fact and by how many bytes this process grew.

    Then it waits to be killed, unless it is to `leave`.
    """
    import numpy as np

    from colmlm.kb.service import KnowledgeBase
    from colmlm.kb.store.settings import Settings

    with KnowledgeBase.open(Settings(home=home, actor="bench")) as kb:
        before = _resident_bytes()
        query = np.load(home / "query.npy")[None]
        (found,) = kb.lookups.find(query, checkpoint_id=checkpoint_id, threshold=-1)
        sys.stdout.write(f"{found.hits[0].fact_id} {_resident_bytes() - before}\n")
        sys.stdout.flush()
        while not leave:
            time.sleep(1)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    if sys.argv[1:2] == ["reopen"]:
        reopen(Path(sys.argv[2]), sys.argv[3], leave="--leave" in sys.argv)
        return
    given = json.load(sys.stdin)
    completes = sys.argv[1:] == ["completions"]
    found = measure_writing(WritingLoad(**given)) if completes else measure(HttpLoad(**given))
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main()
