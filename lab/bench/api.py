"""`colmlm-lab bench api`: measures lookups over HTTP to a server process, beside the same lookups in process."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from colmlm.cli.options import examples
from colmlm.cli.output import note
from colmlm.kb import interpreter
from colmlm.kb.access import tokens as access
from colmlm.kb.errors import InvalidValue
from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.clients import HttpFigures, HttpLoad
from colmlm.lab.bench.machine import machine, milliseconds, own_folder, print_report
from colmlm.lab.bench.servers import bare_asgi, chroma, our_server

API_EXAMPLES = examples(
    "colmlm-lab bench api --facts 20000 --json",
    "colmlm-lab bench api --existing --streams 10",
    "colmlm-lab bench api --facts 100000 --workers 2 --edits 50 --peers --json",
)
NUM_QUERIES = 500


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Choose what is to be measured: numbers of clients, seconds for each, and what runs beside."""

    clients: list[int]
    seconds: float
    workers: int
    edits: int
    streams: int
    peers: bool


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
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Server processes, as of `colmlm serve`.")
    ] = 1,
    edits: Annotated[
        int, typer.Option("--edits", min=0, max=1000, help="Facts deleted and restored a second beside it.")
    ] = 0,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also the same keys behind Chroma's server.")
    ] = False,
) -> None:
    """Measure lookups per second, p50 and p99 over HTTP from several clients, and what HTTP adds to a lookup.

    The server and the clients are processes of their own on this machine and share its cores.
    """
    numbers = numbers_of(clients)
    if streams and not existing:
        raise InvalidValue("streams", "synthetic keys have no model; pass --existing")
    if peers and find_spec("chromadb") is None:
        raise InvalidValue("peers", "chromadb is not installed; it comes with: pip install 'colmlm[bench]'")
    asked = MeasuredLoad(numbers, seconds, workers, edits, streams, peers)
    if existing:
        figures = _measure_api(Settings.from_environment(os.environ), asked)
    else:
        with own_folder() as home:
            settings = Settings(home=home, actor="bench")
            _synthetic(settings, facts, dim)
            figures = _measure_api(settings, asked)
    print_report(figures | {"seconds": seconds, "machine": machine()})


def numbers_of(text: str) -> list[int]:
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
    with KnowledgeBase.open(settings) as kb:
        keyset = kb.keysets.create(CheckpointInfo(CHECKPOINT, CHECKPOINT, dim))
        kb.corpora.ingest(map(Parsed, documents(facts)), "bench", actor="bench", reason="benchmark")
        ids = np.arange(1, facts + 1, dtype=np.int64)
        keys = synthetic_keys(facts, dim, seed=0)
        kb.keysets.store_keys(keyset.keyset_id, ids, keys, actor="bench", reason="benchmark")
        kb.keysets.finish(keyset.keyset_id)


def _measure_api(settings: Settings, asked: MeasuredLoad) -> dict[str, Any]:
    """Give the figures. `overhead_ms` is the p50 of one HTTP client, if that was asked for, minus the one in process.

    What is compared is of the most clients: beside the bare application (`vs_bare`), with edits made meanwhile
    (`vs_without_edits`), at half that rate in an open loop, and beside Chroma's server at no lower recall
    (`vs_chroma`).
    """
    with KnowledgeBase.open(settings) as kb, token_for(kb) as token:
        keyset = kb.keysets.show(kb.keysets.active().keyset_id)
        with kb.sessions() as session:
            sample = keysets.sample_keys(session, keyset.keyset_id, keyset.dim, NUM_QUERIES, keyset.num_keys)
        queries = sample[:NUM_QUERIES]
        note("lookups in process")
        ours, scores = _in_process(kb, queries, keyset.checkpoint_id)
        note("starting a server")
        with our_server(settings, with_model=bool(asked.streams), workers=asked.workers) as port:
            load = lookup_load(port, token, queries, keyset.checkpoint_id, asked.seconds)
            http = [send_load(load, clients=number) for number in asked.clients]
            best = http[-1]
            open_loop = send_load(load, clients=best.clients, rate=best.per_second / 2)
            edited = beside_edits(kb, load, best.clients, asked.edits) if asked.edits else None
            waits = sorted(_first_token(port, token, prompt) for prompt in prompts_of(kb, asked.streams))
        note("the bare application")
        with bare_asgi() as port:
            bare = send_load(replace(load, port=port), clients=best.clients)
        chroma = beside_chroma(kb, keyset, queries, scores, load, best.clients) if asked.peers else None
    alone = next((one.p50_ms for one in http if one.clients == 1), None)
    return {
        "facts": keyset.num_keys,
        "dim": keyset.dim,
        "workers": asked.workers,
        "in_process_p50_ms": milliseconds(ours, 50),
        "in_process_p99_ms": milliseconds(ours, 99),
        "http": http,
        "overhead_ms": None if alone is None else alone - milliseconds(ours, 50),
        "open_loop": open_loop,
        "bare_asgi_per_second": bare.per_second,
        "vs_bare": best.per_second / bare.per_second,
        "edits": edited,
        "vs_without_edits": edited["http"].per_second / best.per_second if edited else None,
        "chroma": chroma,
        "vs_chroma": best.per_second / chroma["http"].per_second if chroma else None,
        "streams": len(waits),
        "first_token_p50_ms": statistics.median(waits) if waits else None,
        "first_token_most_ms": waits[-1] if waits else None,
    }


@contextmanager
def token_for(kb: KnowledgeBase) -> Iterator[str]:
    """Create a token for this measurement only, and yield its secret."""
    name = f"bench-{secrets.token_hex(4)}"
    with kb.sessions.begin() as session:
        secret = access.create_token(session, name, "reader")
    try:
        yield secret
    finally:
        with kb.sessions.begin() as session:
            access.revoke_token(session, name)


def _in_process(
    kb: KnowledgeBase, queries: npt.NDArray[np.float32], checkpoint_id: str
) -> tuple[list[float], npt.NDArray[np.float32]]:
    """Give the seconds of consecutive lookups, and the best score of each query.

    The first fifty lookups are a warm-up and are not counted.
    """
    took, scores = [], np.full(len(queries), -np.inf, dtype=np.float32)
    for n in range(50 + len(queries)):
        i = n % len(queries)
        started = time.perf_counter()
        (found,) = kb.lookups.find(queries[i][None], checkpoint_id=checkpoint_id)
        took.append(time.perf_counter() - started)
        if found.hits:
            scores[i] = found.hits[0].score
    return took[50:], scores


def prompts_of(kb: KnowledgeBase, number: int) -> list[str]:
    """Give prompts that ask for facts of the knowledge base."""
    asked = [fact.question for fact in kb.facts.find(limit=10 * number + 1) if fact.question]
    return [f"Question: {question} Answer:" for question in asked[:number]]


def _first_token(port: int, token: str, prompt: str) -> float:
    """Give the milliseconds from sending a prompt until the first piece of its output arrives."""
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


# What lookups over HTTP are measured beside: edits that are made meanwhile, and Chroma's own server.

MOST_EDITED = 50  # facts that are deleted and then restored, in turn: some of either each second or two


def beside_edits(kb: KnowledgeBase, load: HttpLoad, clients: int, per_second: int) -> dict[str, Any]:
    """Send the load while facts are deleted and restored in turn, one a change, and tell how many a second."""
    over = threading.Event()
    made: list[int] = []
    facts = [fact.fact_id for fact in kb.facts.find(limit=MOST_EDITED)]

    def edit() -> None:
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            turn, due = len(made) // len(facts), due + 1 / per_second
            change = kb.facts.restore if turn % 2 else kb.facts.delete
            change([facts[len(made) % len(facts)]], actor="bench", reason="benchmark")
            made.append(1)

    editing = threading.Thread(target=edit)
    editing.start()
    started = time.monotonic()
    try:
        found = send_load(load, clients=clients)
    finally:
        over.set()
        editing.join()
    took = time.monotonic() - started
    turn, left = divmod(len(made), len(facts))
    if deleted := facts[left:] if turn % 2 else facts[:left]:
        kb.facts.restore(deleted, actor="bench", reason="benchmark is over")
    return {"http": found, "per_second": len(made) / took}


def beside_chroma(
    kb: KnowledgeBase,
    keyset: KeysetRecord,
    queries: npt.NDArray[np.float32],
    scores: npt.NDArray[np.float32],
    load: HttpLoad,
    clients: int,
) -> dict[str, Any]:
    """Send the same queries to Chroma's server over the same keys, at a recall no lower than that of `scores`."""
    from colmlm.lab.bench.peers.chroma import recall_at_1, store_in_chroma

    with kb.sessions() as session:
        keys = keysets.sample_keys(session, keyset.keyset_id, keyset.dim, keyset.num_keys, keyset.num_keys)
    ours = recall_at_1(scores, queries, keys)
    with tempfile.TemporaryDirectory(prefix="colmlm-chroma-") as folder, chroma(Path(folder)) as port:
        note("Chroma stores the keys")
        route = store_in_chroma(port, keys, queries, ours)
        headers = {"Content-Type": "application/json"}
        theirs = replace(load, port=port, path=route.path, headers=headers, bodies=route.bodies)
        return {
            "http": send_load(theirs, clients=clients),
            "ef_search": route.ef_search,
            "recall_at_1": route.recall_at_1,
            "our_recall_at_1": ours,
        }


# Loads of lookups over HTTP, sent by a process of their own.


def lookup_load(
    port: int, token: str, queries: npt.NDArray[np.float32], checkpoint_id: str, seconds: float
) -> HttpLoad:
    """Give the load of these queries, one a request, as JSON."""
    return HttpLoad(
        host="127.0.0.1",
        port=port,
        path="/v1/lookups",
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        bodies=[json.dumps({"queries": [q], "checkpoint_id": checkpoint_id}) for q in queries.tolist()],
        clients=1,
        seconds=seconds,
    )


def send_load(load: HttpLoad, *, clients: int, rate: float = 0.0) -> HttpFigures:
    """Send the load from so many clients and give its figures."""
    note(f"{clients} clients" + (f", {rate:.0f} requests a second" if rate else ""))
    load = replace(load, clients=clients, rate=rate)
    command = interpreter.command("-m", "colmlm.lab.bench.clients", "lookups")
    ran = subprocess.run(command, input=json.dumps(asdict(load)), text=True, capture_output=True, check=True)
    return HttpFigures(**json.loads(ran.stdout))
