"""Decodes against a server while facts are deleted, and checks that none is spliced after its delete is acknowledged.

A server process answers; this process decodes with a tiny real model over HTTP, and another of its threads deletes the
facts that were spliced last and restores them later. A splice is an error if its lookup was sent after the fact's
delete had returned, and answered before its restore began. Every output must be stored at the server, each splice with
its fact.

    python -m tests.acceptance.remote_decodes --decodes 1000
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from colmlm.api.client.client import Client
from colmlm.cli.bases.remote import OutputsElsewhere
from colmlm.cli.composition.encoders import ModelEncoder
from colmlm.cli.composition.generator import StoringGenerator
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.bench.servers import our_server
from colmlm.lab.faults.harness import Figures, fill_base, run_scenario, token_of
from colmlm.model.decoding.config import LookupPort as AnyLookup
from colmlm.model.lm.checkpoint import Checkpoint, load
from tests.tiny import tiny_checkpoint

WHO = {"actor": "editor", "reason": "acceptance"}
FACTS, GONE_AT_ONCE = 60, 20


@dataclass(frozen=True, slots=True)
class Answered:
    """A fact that a lookup gave, and the times at which that lookup was sent and answered."""

    fact_id: int
    sent: float
    answered: float


@dataclass(slots=True)
class Watched:
    """A lookup that records its answers and their times."""

    inner: AnyLookup
    given: list[Answered] = field(default_factory=list)
    queries: int = 0

    def find(self, queries_BD: np.ndarray, **options: Any) -> Sequence[Any]:
        sent = time.monotonic()
        found = self.inner.find(queries_BD, **options)
        answered = time.monotonic()
        self.queries += len(queries_BD)
        self.given += [Answered(hit.fact_id, sent, answered) for one in found for hit in one.hits]
        return found


@dataclass(slots=True)
class Editor:
    """Deletes the fact spliced last and restores it later; records when each fact was certainly deleted."""

    kb: KnowledgeBase
    watched: Watched
    gone: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    deletes: int = 0
    restores: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        deleted: deque[int] = deque()
        while not self.stop.is_set():
            wanted = next(
                (a.fact_id for a in reversed(self.watched.given[-10:]) if a.fact_id not in deleted), None
            )
            if wanted is None:
                time.sleep(0.001)
                continue
            self.kb.facts.delete([wanted], **WHO)
            self.gone.setdefault(wanted, []).append((time.monotonic(), float("inf")))
            deleted.append(wanted)
            self.deletes += 1
            if len(deleted) > GONE_AT_ONCE:
                self._restore(deleted.popleft())

    def _restore(self, fact_id: int) -> None:
        since, _ = self.gone[fact_id][-1]
        self.gone[fact_id][-1] = (since, time.monotonic())
        self.kb.facts.restore([fact_id], **WHO)
        self.restores += 1

    def was_gone(self, answer: Answered) -> bool:
        """Tells whether the fact was deleted from before the lookup was sent until after it was answered."""
        return any(
            since <= answer.sent and answer.answered <= until
            for since, until in self.gone.get(answer.fact_id, ())
        )


def run(
    settings: Settings,
    checkpoint_at: Path | None = None,
    wrap: Callable[[AnyLookup], AnyLookup] = lambda it: it,
    *,
    decodes: int = 1000,
) -> Figures:
    """Decode so many times against a server while facts are deleted and restored."""
    checkpoint_at = checkpoint_at or tiny_checkpoint(settings.home / "checkpoint", eagerness=5.0)
    checkpoint = load(checkpoint_at, checkpoint_at, precision="fp32")
    with KnowledgeBase.open(settings) as kb:
        key = prepare(kb, checkpoint)
        variables = {"COLMLM_CHECKPOINT": str(checkpoint_at)}
        with (
            our_server(settings, with_model=True, variables=variables) as port,
            _open(f"http://127.0.0.1:{port}", key, checkpoint) as client,
        ):
            watched = Watched(wrap(client.lookups))
            editor = Editor(kb, watched)
            editing = threading.Thread(target=editor.run)
            editing.start()
            try:
                started = time.monotonic()
                generator = StoringGenerator(checkpoint, OutputsElsewhere(client), watched)
                said = [generator.generate(_request(n)) for n in range(decodes)]
                took = time.monotonic() - started
            finally:
                editor.stop.set()
                editing.join()
        lost = sum(_is_lost(kb, trace.generation_id, trace.output, len(trace.splices)) for trace in said)
    return {
        "decodes": len(said),
        "lookups": watched.queries,
        "splices": sum(splice.outcome == "hit" for trace in said for splice in trace.splices),
        "deletes": editor.deletes,
        "restores": editor.restores,
        "spliced_after_delete": sum(map(editor.was_gone, watched.given)),
        "lost": lost,
        "seconds": round(took, 1),
    }


def prepare(kb: KnowledgeBase, checkpoint: Checkpoint) -> str:
    """Ingests facts with keys of the checkpoint and a threshold that every query passes; gives a decoder's token."""
    fill_base(kb, FACTS)
    kb.keysets.set_threshold(kb.keysets.rekey(ModelEncoder(checkpoint)).keyset_id, -1.0)
    return token_of(kb, "decoder")


def _request(number: int) -> GenerationRequest:
    return GenerationRequest(
        prompt=f"Text {number} says", mode="forced", max_tokens=6, seed=number, temperature=1.0
    )


def _is_lost(kb: KnowledgeBase, generation_id: int, output: str, splices: int) -> bool:
    stored = kb.outputs.trace(generation_id)
    return (stored.output, len(stored.splices)) != (output, splices) or any(
        kb.outputs.trace_fact(s.fact_id).uses == () for s in stored.splices if s.fact_id is not None
    )


def _open(address: str, key: str, checkpoint: Checkpoint) -> Client:
    return Client.open(address, key, checkpoint_id=checkpoint.checkpoint_id)


class Stale:
    """A faulty lookup that the check must detect: it repeats an old answer forever."""

    def __init__(self, inner: AnyLookup) -> None:
        self.inner = inner
        self.first: Lookup | None = None

    def find(self, queries_BD: np.ndarray, **options: Any) -> Sequence[Any]:
        if self.first is None:
            (self.first,) = self.inner.find(queries_BD[:1], **options)
        return [self.first] * len(queries_BD)


if __name__ == "__main__":
    run_scenario(run)
