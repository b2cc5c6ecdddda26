"""Clients that look up over HTTP as fast as they are answered, in a process of their own beside the server's.

    python -m colmlm.lab.bench.clients < load.json

Threads with a connection each, by the standard library's client: what a heavier one costs is not the server's doing.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """What to send: each body in turn to `path`, from so many connections for so many seconds."""

    host: str
    port: int
    path: str
    headers: dict[str, str]
    bodies: list[str]
    clients: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HttpFigures:
    """What came back. Latencies are of answered requests, in milliseconds; `errors` were anything but 200."""

    clients: int
    requests: int
    errors: int
    per_second: float
    p50_ms: float
    p99_ms: float


def measure(load: HttpLoad) -> HttpFigures:
    """Send the load, after one request of each connection that counts for nothing."""
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
    milliseconds = sorted(1000 * s for seconds, _ in results for s in seconds)
    return HttpFigures(
        clients=load.clients,
        requests=len(milliseconds),
        errors=sum(errors for _, errors in results),
        per_second=len(milliseconds) / took,
        p50_ms=percentile(milliseconds, 50),
        p99_ms=percentile(milliseconds, 99),
    )


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else float("nan")


def _client(load: HttpLoad, number: int, starting: threading.Barrier) -> tuple[list[float], int]:
    """Seconds of each answered request, and how many were not answered rightly."""
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
        connection.close()  # the next request opens it again
        return False
    return answer.status == 200


def main() -> None:
    sys.stdout.write(json.dumps(asdict(measure(HttpLoad(**json.load(sys.stdin))))) + "\n")


if __name__ == "__main__":
    main()
