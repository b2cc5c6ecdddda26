"""`colmlm bench api`: measures lookups over HTTP to a server process, beside the same lookups in process."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from colmlm.cli.options import AsJson, examples
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.kb import interpreter
from colmlm.kb.access import tokens as access
from colmlm.kb.errors import InvalidValue
from colmlm.kb.keys import keysets
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.clients import HttpFigures, HttpLoad
from colmlm.lab.bench.durations import milliseconds
from colmlm.lab.bench.machine import machine

API_EXAMPLES = examples(
    "colmlm bench api --facts 20000 --json",
    "colmlm bench api --existing --streams 10",
)
NUM_QUERIES = 500
START_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFigures:
    """The figures. `overhead_ms` is the p50 of one HTTP client minus that of the same lookup in process."""

    facts: int
    dim: int
    in_process_p50_ms: float
    in_process_p99_ms: float
    http: list[HttpFigures]
    overhead_ms: float
    streams: int
    first_token_p50_ms: float | None
    first_token_most_ms: float | None


def api(
    facts: Annotated[int, typer.Option("--facts", min=2000, help="How many synthetic facts.")] = 20_000,
    dim: Annotated[int, typer.Option("--dim", min=4, max=16_384, help="Width of a key.")] = 576,
    clients: Annotated[str, typer.Option("--clients", help="Numbers of clients at once.")] = "1,8,32",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=600, help="For each number.")] = 5.0,
    existing: Annotated[
        bool,
        typer.Option("--existing", help="On the knowledge base that is there, with its own keys as queries."),
    ] = False,
    streams: Annotated[
        int,
        typer.Option(
            "--streams", min=0, max=1000, help="With --existing: outputs to stream; they are stored."
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure lookups per second, p50 and p99 over HTTP from several clients, and what HTTP adds to a lookup.

    The server and the clients are processes of their own on this machine and share its cores.
    """
    numbers = _numbers(clients)
    if streams and not existing:
        raise InvalidValue("streams", "synthetic keys have no model; pass --existing")
    if existing:
        figures = _measure(Settings.from_environment(os.environ), numbers, seconds, streams)
    else:
        with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as folder:
            settings = Settings(home=Path(folder), actor="bench")
            _synthetic(settings, facts, dim)
            figures = _measure(settings, numbers, seconds, 0)
    if as_json:
        print_json(asdict(figures) | {"seconds": seconds, "machine": machine()})
    else:
        _show(figures)


def _numbers(text: str) -> list[int]:
    try:
        found = [int(number) for number in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= number <= 256 for number in found):
        raise InvalidValue("clients", f"{text!r} is not a list of numbers from 1 to 256, as in 1,8,32")
    return found


def _synthetic(settings: Settings, facts: int, dim: int) -> None:
    from colmlm.kb.corpus.format import Parsed
    from colmlm.kb.keys.records import CheckpointInfo
    from colmlm.lab.bench.store import CHECKPOINT
    from colmlm.lab.bench.synthetic import documents, synthetic_keys

    note(f"making a knowledge base of {facts} facts")
    engine = database.connect(settings)
    database.migrate(engine)
    engine.dispose()
    with KnowledgeBase.open(settings) as kb:
        keyset = kb.keysets.create(CheckpointInfo(CHECKPOINT, CHECKPOINT, dim))
        kb.corpora.ingest(map(Parsed, documents(facts)), "bench", actor="bench", reason="benchmark")
        ids = np.arange(1, facts + 1, dtype=np.int64)
        keys = synthetic_keys(facts, dim, seed=0)
        kb.keysets.store_keys(keyset.keyset_id, ids, keys, actor="bench", reason="benchmark")
        kb.keysets.finish(keyset.keyset_id)


def _measure(settings: Settings, numbers: list[int], seconds: float, streams: int) -> ApiFigures:
    with KnowledgeBase.open(settings) as kb, _key(kb) as token:
        keyset = kb.keysets.active()
        with kb.sessions() as session:
            sample = keysets.sample_keys(session, keyset.keyset_id, keyset.dim, NUM_QUERIES, keyset.num_keys)
        queries = sample[:NUM_QUERIES]
        note("lookups in process")
        ours = _in_process(kb, queries, keyset.checkpoint_id)
        note("starting a server")
        with _server(settings, token, with_model=bool(streams)) as port:
            http = [
                _over_http(port, token, queries, keyset.checkpoint_id, number, seconds) for number in numbers
            ]
            waits = sorted(_first_token(port, token, prompt) for prompt in _prompts(kb, streams))
    alone = next((one.p50_ms for one in http if one.clients == 1), float("nan"))
    return ApiFigures(
        facts=keyset.num_keys,
        dim=keyset.dim,
        in_process_p50_ms=milliseconds(ours, 50),
        in_process_p99_ms=milliseconds(ours, 99),
        http=http,
        overhead_ms=alone - milliseconds(ours, 50),
        streams=len(waits),
        first_token_p50_ms=statistics.median(waits) if waits else None,
        first_token_most_ms=waits[-1] if waits else None,
    )


@contextmanager
def _key(kb: KnowledgeBase) -> Iterator[str]:
    """Creates a token for this measurement only, and yields its secret."""
    name = f"bench-{secrets.token_hex(4)}"
    with kb.sessions.begin() as session:
        secret = access.create_token(session, name, "reader")
    try:
        yield secret
    finally:
        with kb.sessions.begin() as session:
            access.revoke_token(session, name)


def _in_process(kb: KnowledgeBase, queries: npt.NDArray[np.float32], checkpoint_id: str) -> list[float]:
    """Gives the seconds of consecutive lookups. The first fifty are a warm-up and are not counted."""
    took = []
    for n in range(50 + len(queries)):
        query = queries[n % len(queries)][None]
        started = time.perf_counter()
        kb.lookups.find(query, checkpoint_id=checkpoint_id)
        took.append(time.perf_counter() - started)
    return took[50:]


@contextmanager
def _server(settings: Settings, token: str, *, with_model: bool, **variables: str) -> Iterator[int]:
    """Starts `colmlm serve` with these settings, and yields its port once it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    ours = {"COLMLM_HOME": str(settings.home), "COLMLM_LOG_LEVEL": "warning"}
    words = ["serve", "--host", "127.0.0.1", "--port", str(port), "--no-worker"]
    words += [] if with_model else ["--no-model"]
    with subprocess.Popen(
        interpreter.command("-m", "colmlm.cli", *words), env={**os.environ, **ours, **variables}
    ) as process:
        try:
            _wait_until_ready(process, port)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise InvalidValue("server", "it did not become ready; `colmlm doctor` says what is missing")


def _over_http(
    port: int, token: str, queries: npt.NDArray[np.float32], checkpoint_id: str, number: int, seconds: float
) -> HttpFigures:
    note(f"{number} clients")
    bodies = [json.dumps({"queries": [q], "checkpoint_id": checkpoint_id}) for q in queries.tolist()]
    load = HttpLoad(
        host="127.0.0.1",
        port=port,
        path="/v1/lookups",
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        bodies=bodies,
        clients=number,
        seconds=seconds,
    )
    command = interpreter.command("-m", "colmlm.lab.bench.clients")
    ran = subprocess.run(command, input=json.dumps(asdict(load)), text=True, capture_output=True, check=True)
    return HttpFigures(**json.loads(ran.stdout))


def _prompts(kb: KnowledgeBase, number: int) -> list[str]:
    """Gives prompts that ask for facts of the knowledge base."""
    asked = [fact.question for fact in kb.facts.find(limit=10 * number + 1) if fact.question]
    return [f"Question: {question} Answer:" for question in asked[:number]]


def _first_token(port: int, token: str, prompt: str) -> float:
    """Gives the milliseconds from sending a prompt until the first piece of its output arrives."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = json.dumps({"prompt": prompt, "stream": True, "max_tokens": 16, "on_miss": "continue"})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    started = time.perf_counter()
    connection.request("POST", "/v1/generations", body, headers)
    answer = connection.getresponse()
    answer.readline()
    took = 1000 * (time.perf_counter() - started)
    answer.read()
    connection.close()
    return took


def _show(f: ApiFigures) -> None:
    say(f"{f.facts} keys of width {f.dim}")
    rows: list[tuple[object, ...]] = [
        (
            "in process, one after the other",
            "",
            f"{f.in_process_p50_ms:.2f}",
            f"{f.in_process_p99_ms:.2f}",
            "",
        )
    ]
    rows += [
        (
            f"HTTP, {one.clients} clients",
            f"{one.per_second:.0f}",
            f"{one.p50_ms:.2f}",
            f"{one.p99_ms:.2f}",
            one.errors,
        )
        for one in f.http
    ]
    print_table(("lookups", "a second", "p50 ms", "p99 ms", "errors"), rows)
    say(f"HTTP adds {f.overhead_ms:.2f} ms to a lookup")
    if f.first_token_p50_ms is not None:
        say(
            f"first token: p50 {f.first_token_p50_ms:.0f} ms, most {f.first_token_most_ms:.0f} ms of {f.streams}"
        )
