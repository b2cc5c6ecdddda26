"""Lets one process edit and another look up: once an edit is acknowledged, the old answer must never be given again.

The writer deletes, restores and updates random facts. After each commit it sends the reader, over a pipe, the answer
that the fact must now give, and edits other facts at once. The reader looks that fact up without waiting for anything
else from the writer, and reports whether the answer was right. The reader follows the log in the background as a server
does.

    python -m tests.acceptance.two_processes --operations 10000
    python -m tests.acceptance.two_processes --operations 10000 --milvus milvus-data --beside 100000
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.lookup.follower import Follower
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import MilvusAddress, Settings
from colmlm.lab.bench.synthetic import documents
from tests.acceptance.programs import options_of, own_database, report
from tests.acceptance.spawned import spawned
from tests.fakes import DIM, FakeEncoder
from tests.kb.corpora import ask, ingest, numbered
from tests.milvus_server import milvus_server

WHO = {"actor": "writer", "reason": "acceptance"}
IN_FLIGHT = 16  # edited and not yet confirmed facts, by which the writer may be ahead
FACTS = 200
WIDTH = 576  # of keys where facts stand beside those that are edited


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: half of the operations are edits, half are lookups in the other process."""

    operations: int
    deletes: int
    restores: int
    updates: int
    wrong: int
    chain_ok: bool
    index_ok: bool
    seconds: float
    lookup_p50_ms: float
    lookup_p99_ms: float


@dataclass(frozen=True, slots=True)
class Told:
    """The effect of an edit: the question of fact `number` must now get the answer `value` (None: no match)."""

    number: int
    value: str | None


def run(
    settings: Settings, operations: int, seed: int = 0, index_spec: str | None = None, beside: int = 0
) -> Outcome:
    """Runs `operations` operations on the empty, migrated database of `settings`.

    So many facts stand `beside` those that are edited, with keys at random. `index_spec` says what searches them.
    """
    encoder = FakeEncoder(dim=WIDTH if beside else DIM)
    with KnowledgeBase.open(settings) as kb:
        ingest(kb, *numbered(FACTS))
        keyset = kb.keysets.create(encoder.checkpoint, index_spec)
        if beside:
            store_beside(kb, keyset.keyset_id, beside, seed)
        kb.keysets.rekey(encoder)
        with spawned(read, settings, encoder.dim) as pipe:
            started = time.monotonic()
            kinds = _write(kb, pipe, operations // 2, random.Random(seed))
            wrong, milliseconds = pipe.recv()
        report = kb.upkeep.fsck()
    milliseconds.sort()
    return Outcome(
        operations=2 * len(milliseconds),
        deletes=kinds.count("delete"),
        restores=kinds.count("restore"),
        updates=kinds.count("update"),
        wrong=wrong,
        chain_ok=report.chain_ok,
        index_ok=report.ok,
        seconds=round(time.monotonic() - started, 2),
        lookup_p50_ms=round(milliseconds[len(milliseconds) // 2], 2),
        lookup_p99_ms=round(milliseconds[len(milliseconds) * 99 // 100], 2),
    )


def store_beside(kb: KnowledgeBase, keyset_id: int, number: int, seed: int) -> None:
    kb.corpora.ingest([Parsed(document) for document in documents(number)], "beside", **WHO)
    random_keys = np.random.default_rng(seed).standard_normal((number, WIDTH), np.float32)
    random_keys /= np.linalg.norm(random_keys, axis=1, keepdims=True)
    kb.keysets.store_keys(keyset_id, np.arange(FACTS + 1, FACTS + 1 + number), random_keys, **WHO)


def _write(kb: KnowledgeBase, pipe: Connection, edits: int, choose: random.Random) -> list[str]:
    """Edits, tells the reader and collects confirmations; gives the kinds of the edits."""
    by_number = {int(fact.value.split()[1]): fact.fact_id for fact in kb.facts.find(limit=FACTS)}
    live: dict[int, str] = {number: f"value {number}" for number in by_number}
    last = dict(live)
    unconfirmed: set[int] = set()
    kinds: list[str] = []
    for n in range(edits):
        while len(unconfirmed) == IN_FLIGHT or (unconfirmed and pipe.poll()):
            unconfirmed.discard(pipe.recv())
        number = choose.choice([one for one in by_number if one not in unconfirmed])
        fact_id = by_number[number]
        if number not in live:
            kinds.append(kb.facts.restore([fact_id], **WHO).kind)
            live[number] = last[number]
        elif choose.random() < 0.5:
            kinds.append(kb.facts.delete([fact_id], **WHO, abstain=choose.random() < 0.3).kind)
            del live[number]
        else:
            kinds.append(kb.facts.edit(fact_id, f"edited {n}", **WHO).kind)
            live[number] = last[number] = f"edited {n}"
        unconfirmed.add(number)
        pipe.send(Told(number, live.get(number)))
    while unconfirmed:
        unconfirmed.discard(pipe.recv())
    pipe.send(None)
    return kinds


def read(settings: Settings, dim: int, pipe: Connection) -> None:
    """Runs the reader process: looks up each fact that it is told, and reports wrong answers and times at the end."""
    encoder, wrong, milliseconds = FakeEncoder(dim=dim), 0, []
    with KnowledgeBase.open(settings) as kb, Follower(kb):
        while (told := pipe.recv()) is not None:
            started = time.perf_counter()
            (lookup,) = ask(kb, encoder, f"Question {told.number}?")
            milliseconds.append(1000 * (time.perf_counter() - started))
            value = lookup.hits[0].value if lookup.hits else None
            if value != told.value:
                wrong += 1
                print(f"fact {told.number}: {value!r} instead of {told.value!r}", file=sys.stderr)
            pipe.send(told.number)
    pipe.send((wrong, milliseconds))


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--milvus", type=Path, help="have a Milvus server search the keys, with its data here"
    )
    parser.add_argument("--beside", type=int, default=0, help="facts beside those that are edited")
    options = parser.parse_args()
    with ExitStack() as stack:
        settings, index_spec = stack.enter_context(own_database("writer")), None
        if options.milvus is not None:
            server = stack.enter_context(milvus_server(options.milvus))
            settings = replace(settings, milvus=MilvusAddress(uri=server.uri))
            index_spec = "milvus:acceptance"
        outcome = run(settings, options.operations, options.seed, index_spec, options.beside)
    is_good = outcome.wrong == 0 and outcome.chain_ok and outcome.index_ok
    return report(outcome, is_good=is_good, as_json=True)


if __name__ == "__main__":
    sys.exit(main())
