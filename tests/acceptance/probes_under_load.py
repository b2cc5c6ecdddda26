"""Measures probes and lookups of a server whose edits wait for a locked log, under much other load.

One process serves a base. First it only answers lookups. Then another connection locks the log, 50 edits wait for it,
32 clients look up as of a change, 4 outputs are decoded at once, and the same lookups are sent beside all that.

    python -m tests.acceptance.probes_under_load --json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from typing import Any

import httpx
import numpy as np
from sqlalchemy import text

from colmlm.kb import interpreter
from colmlm.kb.log.audit import CHANGE_LOCK
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import Figures, fill_base, run_scenario, token_of
from tests.acceptance.server import server_process
from tests.fakes import DIM, FakeEncoder
from tests.places import PYTHONPATH, ROOT

PROBE_EVERY = 0.05
ASKED_SECONDS = 60.0
FULL = "slots for "


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load: how many requests at once, for how long, and on how large a base."""

    seconds: float = 20.0
    facts: int = 20_000
    lookers: int = 4
    edits: int = 50
    past: int = 32
    rows: int = 64
    decodes: int = 4


@dataclass(frozen=True, slots=True)
class Phase:
    """The figures of a phase. `refused` counts the answers 503 by limiter, or by problem if no limiter was full."""

    probes: int
    probe_ms: dict[str, float]
    probe_errors: dict[str, int]
    lookups_per_second: float
    done: dict[str, int]
    refused: dict[str, int]
    failed: dict[str, int]


@dataclass(slots=True)
class Tally:
    """The results that the clients of a phase saw; many threads add to its lists and counters."""

    probe_seconds: list[float] = field(default_factory=list)
    probe_errors: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, ask: Callable[[], httpx.Response]) -> int:
        """Sends a request and counts the answer; a client that is refused then waits as Retry-After says."""
        try:
            answer = ask()
        except httpx.HTTPError as error:
            with self.lock:
                self.failed[f"{kind}: {type(error).__name__}"] += 1
            return 0
        with self.lock:
            if answer.status_code < 300:
                self.done[kind] += 1
            elif answer.status_code == 503:
                self.refused[_why(answer)] += 1
            else:
                self.failed[f"{kind}: {answer.status_code}"] += 1
        time.sleep(float(answer.headers.get("retry-after", "0")))
        return answer.status_code

    def phase(self, seconds: float) -> Phase:
        rate = self.done["lookups"] / seconds
        counted = map(dict, (self.done, self.refused, self.failed))
        return Phase(
            len(self.probe_seconds),
            _ms(self.probe_seconds),
            dict(self.probe_errors),
            round(rate, 1),
            *counted,
        )


def run(
    settings: Settings, load: Load | None = None, *, seconds: float = 20.0, facts: int = 20_000
) -> Figures:
    """Measure probes and lookups without other load and beside it, for so many seconds each.

    `edits_while_held` were done while the log was locked, which should be impossible.
    """
    load = load or Load(seconds=seconds, facts=facts)
    with KnowledgeBase.open(settings) as kb:
        fill_base(kb, load.facts)
        kb.keysets.rekey(FakeEncoder())
        token = token_of(kb)
        # Nobody reads the server's log meanwhile, and a full pipe would block it.
        waits = {"COLMLM_LOCK_TIMEOUT_SECONDS": "3600", "COLMLM_LOG_LEVEL": "error"}
        with server_process(settings, "--pace", "0.05", **waits) as server:
            return _measured(kb, server.address, token, load)


def _measured(kb: KnowledgeBase, address: str, token: str, load: Load) -> Figures:
    with ThreadPoolExecutor(load.edits) as editors, _client(address, token) as client:
        client.post("/v1/lookups", json={"questions": ["Question 1?"]}).raise_for_status()  # opens the index
        quiet = Tally()
        with _asking(address, token, load, quiet):
            time.sleep(load.seconds)
        loaded = Tally()
        edit = {"value": "edited", "reason": "load"}
        with _log_held(kb):
            edits = [
                editors.submit(loaded.note, "edits", lambda: client.patch("/v1/facts/1", json=edit))
                for _ in range(load.edits)
            ]
            _await_an_edit(kb)
            with _asking(address, token, load, loaded, kb.log.head_seq()):
                time.sleep(load.seconds)
            while_held = loaded.done["edits"]
        afterwards = [edit.result() for edit in edits].count(200) - while_held
    before, beside = quiet.phase(load.seconds), loaded.phase(load.seconds)
    ratio = beside.lookups_per_second / before.lookups_per_second if before.lookups_per_second else 0.0
    return {
        "load": asdict(load),
        "quiet": asdict(before),
        "loaded": asdict(beside),
        "lookups_ratio": round(ratio, 3),
        "edits_while_held": while_held,
        "edits_afterwards": afterwards,
    }


@contextmanager
def _asking(address: str, token: str, load: Load, tally: Tally, head: int | None = None) -> Iterator[None]:
    """Runs clients that send requests again and again until the block ends, and the probe beside them.

    With the `head` of the log, which no edit moves meanwhile, the whole load is sent beside the lookups.
    """
    over = threading.Event()
    kinds: list[tuple[int, Callable[[httpx.Client], None]]] = [(load.lookers, lambda c: _look_up(c, tally))]
    if head is not None:
        kinds += [
            (load.past, lambda c: _look_up_the_past(c, tally, load, head)),
            (load.decodes, lambda c: _decode(c, tally)),
        ]

    def again(ask: Callable[[httpx.Client], None]) -> None:
        with _client(address, token) as client:
            while not over.is_set():
                ask(client)

    with ThreadPoolExecutor(sum(number for number, _ in kinds)) as clients:
        for number, ask in kinds:
            for _ in range(number):
                clients.submit(again, ask)
        try:
            with _probed(address, tally):
                yield
        finally:
            over.set()


@contextmanager
def _probed(address: str, tally: Tally) -> Iterator[None]:
    """Runs the probe in a process of its own, so that the clients of the load do not compete for its interpreter."""
    asked = interpreter.command("-m", "tests.acceptance.probes_under_load", "--probe", address)
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen(
        asked, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has started
    try:
        yield
    finally:
        told, _ = process.communicate()  # it ends with its input
    seconds, errors = json.loads(told)
    tally.probe_seconds += seconds
    tally.probe_errors.update(errors)


def probe(address: str) -> tuple[list[float], Counter[str]]:
    """Probes the server until this process's input ends; gives the seconds of each answer, and errors by name."""
    over = threading.Event()
    seconds: list[float] = []
    errors: Counter[str] = Counter()
    threading.Thread(target=_set_at_the_end, args=(over,), daemon=True).start()
    print("asking", flush=True)
    with httpx.Client(base_url=address, timeout=ASKED_SECONDS) as client:
        while not over.wait(PROBE_EVERY):
            asked = time.perf_counter()
            try:
                client.get("/healthz").raise_for_status()
            except httpx.HTTPError as error:
                errors[type(error).__name__] += 1
            seconds.append(time.perf_counter() - asked)
    return seconds, errors


def _set_at_the_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _look_up(client: httpx.Client, tally: Tally) -> None:
    tally.note("lookups", lambda: client.post("/v1/lookups", json={"questions": ["Question 7?"]}))


def _look_up_the_past(client: httpx.Client, tally: Tally, load: Load, head: int) -> None:
    body = np.ones((load.rows, DIM), dtype="<f4").tobytes()
    asked = {"checkpoint_id": "fake", "dim": DIM, "as_of": head}
    tally.note("lookups of the past", lambda: client.post("/v1/lookups/vectors", params=asked, content=body))


def _decode(client: httpx.Client, tally: Tally) -> None:
    asked = {"prompt": "Question 7?", "stream": True}
    tally.note("decodes", lambda: client.post("/v1/generations", json=asked))


@contextmanager
def _log_held(kb: KnowledgeBase) -> Iterator[None]:
    with kb.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CHANGE_LOCK})
        yield


def _await_an_edit(kb: KnowledgeBase) -> None:
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.scalar(waiting):
            time.sleep(0.01)


def _client(address: str, token: str) -> httpx.Client:
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=address, headers=headers, timeout=ASKED_SECONDS, limits=limits)


def _why(answer: httpx.Response) -> str:
    problem: dict[str, Any] = answer.json()
    _, full, limiter = problem["detail"].partition(FULL)
    return str(limiter.partition(" are taken")[0] if full else problem["type"])


def _ms(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {"max": round(1000 * max(seconds, default=0.0), 1)}
    cuts = quantiles(seconds, n=100, method="inclusive")
    found = {"p50": cuts[49], "p99": cuts[98], "max": max(seconds)}
    return {name: round(1000 * value, 1) for name, value in found.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--probe"]:
        print(json.dumps(probe(sys.argv[2])))
    else:
        run_scenario(run)
