"""Runs clients that send lookups over HTTP one after another, in a process apart from the server's.

    python -m colmlm.lab.bench.clients < load.json

Each client is a thread with one connection of the standard library's HTTP client, whose own cost is small.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass

from colmlm.lab.bench.durations import milliseconds


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """The load to send: each body in turn to `path`, on `connections` connections for `seconds` seconds."""

    host: str
    port: int
    path: str
    headers: dict[str, str]
    bodies: list[str]
    clients: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HttpFigures:
    """The results. Latencies are of the requests that got 200, in milliseconds; `errors` counts the others."""

    clients: int
    requests: int
    errors: int
    per_second: float
    p50_ms: float
    p99_ms: float


def measure(load: HttpLoad) -> HttpFigures:
    """Sends the load and gives its figures. The first request of each connection is not counted."""
    starting = threading.Barrier(load.clients + 1)
    results: list[tuple[list[float], int]] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(_client(load, n, starting)))
        for n in range(load.clients)
    ]
    for thread in threads:
        thread.start()
    starting.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    seconds = [one for client, _ in results for one in client]
    return HttpFigures(
        clients=load.clients,
        requests=len(seconds),
        errors=sum(errors for _, errors in results),
        per_second=len(seconds) / took,
        p50_ms=milliseconds(seconds, 50),
        p99_ms=milliseconds(seconds, 99),
    )


def _client(load: HttpLoad, number: int, starting: threading.Barrier) -> tuple[list[float], int]:
    """Gives the seconds of each request that got 200, and the number of the others."""
    connection = http.client.HTTPConnection(load.host, load.port, timeout=60)
    bodies = [body.encode() for body in load.bodies]
    seconds: list[float] = []
    errors = 0
    _ask(connection, load, bodies[0])
    starting.wait()
    until = time.perf_counter() + load.seconds
    while (began := time.perf_counter()) < until:
        number += 1
        if _ask(connection, load, bodies[number % len(bodies)]):
            seconds.append(time.perf_counter() - began)
        else:
            errors += 1
    connection.close()
    return seconds, errors


def _ask(connection: http.client.HTTPConnection, load: HttpLoad, body: bytes) -> bool:
    try:
        connection.request("POST", load.path, body, load.headers)
        answer = connection.getresponse()
        answer.read()
    except (http.client.HTTPException, OSError):
        connection.close()  # the next request reconnects
        return False
    return answer.status == 200


def main() -> None:
    sys.stdout.write(json.dumps(asdict(measure(HttpLoad(**json.load(sys.stdin))))) + "\n")


if __name__ == "__main__":
    main()
