"""Runs clients that have prompts completed as streams, one after another, in a process apart from the server's.

python -m colmlm.lab.bench.writers < load.json
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from colmlm.lab.bench.machine import milliseconds


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
    """The results of `clients` at once. `ttft` is from the request to the first piece, `between` from a piece to the
    next; a completion has `tokens_each` of the model's own on average; `refused` counts answers other than 200. Where
    prompts were long, `long_prompts` of them were read meanwhile.
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


def measure(load: WritingLoad) -> WritingFigures:
    """Send the load and give its figures."""
    starting = threading.Barrier(load.clients + bool(load.long) + 1)
    over = threading.Event()
    seen = [_Seen() for _ in range(load.clients)]
    threads = [
        threading.Thread(target=_client, args=(load, n, one, starting, over)) for n, one in enumerate(seen)
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


def _client(
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


def main() -> None:
    sys.stdout.write(json.dumps(asdict(measure(WritingLoad(**json.load(sys.stdin))))) + "\n")


if __name__ == "__main__":
    main()
