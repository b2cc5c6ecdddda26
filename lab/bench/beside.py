"""What lookups over HTTP are measured beside: edits that are made meanwhile, and Chroma's own server."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colmlm.cli.output import note
from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.service import KnowledgeBase
from colmlm.lab.bench.clients import HttpFigures, HttpLoad
from colmlm.lab.bench.loads import sent
from colmlm.lab.bench.servers import chroma

MOST_EDITED = 50  # facts that are deleted and then restored, in turn: some of either each second or two


@dataclass(frozen=True, slots=True)
class EditsBeside:
    """Lookups beside edits, and how many edits a second were made."""

    http: HttpFigures
    per_second: float


@dataclass(frozen=True, slots=True)
class ChromaFigures:
    """The same queries to Chroma's server, with its effort and its recall, and ours."""

    http: HttpFigures
    ef_search: int
    recall_at_1: float
    our_recall_at_1: float


def beside_edits(kb: KnowledgeBase, load: HttpLoad, clients: int, per_second: int) -> EditsBeside:
    """Sends the load while facts are deleted and restored in turn, one a change."""
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
        found = sent(load, clients=clients)
    finally:
        over.set()
        editing.join()
    took = time.monotonic() - started
    turn, left = divmod(len(made), len(facts))
    if deleted := facts[left:] if turn % 2 else facts[:left]:
        kb.facts.restore(deleted, actor="bench", reason="benchmark is over")
    return EditsBeside(found, len(made) / took)


def beside_chroma(
    kb: KnowledgeBase,
    keyset: KeysetRecord,
    queries: npt.NDArray[np.float32],
    scores: npt.NDArray[np.float32],
    load: HttpLoad,
    clients: int,
) -> ChromaFigures:
    """Sends the same queries to Chroma's server over the same keys, at a recall no lower than that of `scores`."""
    from colmlm.lab.bench.chroma_http import recall_at_1, stored

    with kb.sessions() as session:
        keys = keysets.sample_keys(session, keyset.keyset_id, keyset.dim, keyset.num_keys, keyset.num_keys)
    ours = recall_at_1(scores, queries, keys)
    with tempfile.TemporaryDirectory(prefix="colmlm-chroma-") as folder, chroma(Path(folder)) as port:
        note("Chroma stores the keys")
        route = stored(port, keys, queries, ours)
        headers = {"Content-Type": "application/json"}
        theirs = replace(load, port=port, path=route.path, headers=headers, bodies=route.bodies)
        return ChromaFigures(sent(theirs, clients=clients), route.ef_search, route.recall_at_1, ours)
