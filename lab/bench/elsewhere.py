"""Measures lookups whose keys a server elsewhere searches, beside those with Faiss in the process, on the same facts.

Two keysets hold the same keys. Each query is looked up in both, one after the other, so that other load affects both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import text

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.lookup.remote import SETTLED_SECONDS, CollectionCandidates
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import MilvusAddress, Settings
from colmlm.lab.bench.machine import milliseconds, seconds_of
from colmlm.lab.bench.synthetic import MeasuredKeys, documents, exact_top1

HERE, ELSEWHERE = "here", "elsewhere"  # checkpoints
NUM_EDITS, WARM_UP = 200, 50
ACTOR, REASON = "bench", "benchmark"
INDEX_SECONDS = 600  # for which the server may build its own index


@dataclass(slots=True)
class BackendBench:
    """One run, in a directory of its own, with a collection that is dropped at its end."""

    measured: MeasuredKeys
    seed: int
    backend: str
    spec: str | None
    address: MilvusAddress
    home: Path
    say: Callable[[str], None]

    def run(self) -> dict[str, Any]:
        """Give the figures, of one lookup each: with Faiss here, and with keys elsewhere.

        `same_answers` is the share of queries with the same best fact at the same score. `deleted_but_found` and
        `restored_not_found` count lookups of a fact's own key right after the edit. `handed_on_seconds` is what all
        those edits took to be written there.
        """
        settings = Settings(home=self.home, actor="bench", milvus=self.address)
        keys = self.measured.keys
        with KnowledgeBase.open(settings) as kb:
            self.say("ingesting documents and storing keys")
            made = [Parsed(document) for document in documents(len(keys))]
            kb.corpora.ingest(made, "bench", actor=ACTOR, reason=REASON)
            here, here_seconds = self._store_keys(kb, HERE, self.spec)
            there, fill_seconds = self._store_keys(kb, ELSEWHERE, self.backend)
            try:
                index_seconds = self._await_server_index(there)
                figures = self._lookups(here, there)
                figures |= self._edits(kb, there)
                report = kb.upkeep.fsck()
                here_spec = here.current().candidates.fit.spec
            finally:
                _candidates(there).collection.drop()
        return {
            "backend": self.backend,
            "keys": self.measured.source,
            "facts": len(keys),
            "dim": keys.shape[1],
            "seed": self.seed,
            "here_spec": here_spec,
            "here_build_seconds": here_seconds,
            "fill_seconds": fill_seconds,
            "index_seconds": index_seconds,
            "differences": len(report.problems),
            **figures,
        }

    def _store_keys(self, kb: KnowledgeBase, name: str, spec: str | None) -> tuple[Searcher, float]:
        """Store the keys in a keyset of this spec and give lookups in it, with the seconds that its index took."""
        keys = self.measured.keys
        keyset = kb.keysets.create(CheckpointInfo(name, name, keys.shape[1]), spec)
        fact_ids = np.arange(1, len(keys) + 1, dtype=np.int64)
        kb.keysets.store_keys(keyset.keyset_id, fact_ids, keys, actor=ACTOR, reason=REASON)
        with kb.sessions.begin() as session:
            session.execute(
                text("UPDATE keyset SET state = 'ready' WHERE id = :id"), {"id": keyset.keyset_id}
            )
        self.say(f"filling {spec or 'the index here'}")
        seconds = seconds_of(lambda: kb.searcher.prepare(keyset.keyset_id))
        return kb.lookups.in_keyset(keyset.keyset_id), seconds

    def _await_server_index(self, there: Searcher) -> float:
        """Wait until the server has built its own index and every search sees all keys, and give the seconds."""
        self.say("waiting for the server's own index")
        started = time.perf_counter()
        collection = _candidates(there).collection
        while not collection.is_indexed():
            if time.perf_counter() - started > INDEX_SECONDS:
                raise TimeoutError(f"{collection.where} has no index after {INDEX_SECONDS} s")
            time.sleep(1)
        seconds = time.perf_counter() - started
        time.sleep(SETTLED_SECONDS)
        return seconds

    def _lookups(self, here: Searcher, there: Searcher) -> dict[str, Any]:
        self.say("lookups")
        queries, right = self.measured.queries, exact_top1(self.measured.keys, self.measured.queries) + 1
        found: dict[str, list[tuple[int, float]]] = {HERE: [], ELSEWHERE: []}
        seconds: dict[str, list[float]] = {HERE: [], ELSEWHERE: []}
        for query in queries:
            for name, searcher in ((HERE, here), (ELSEWHERE, there)):
                started = time.perf_counter()
                (lookup,) = searcher.find(query[None], checkpoint_id=name, threshold=-1)
                seconds[name].append(time.perf_counter() - started)
                found[name].append((lookup.hits[0].fact_id, round(lookup.hits[0].score, 5)))
        ids = {name: np.array([fact_id for fact_id, _ in answers]) for name, answers in found.items()}
        return {
            "recall_at_1": float(np.mean(ids[ELSEWHERE] == right)),
            "here_recall_at_1": float(np.mean(ids[HERE] == right)),
            "same_answers": float(
                np.mean([a == b for a, b in zip(found[HERE], found[ELSEWHERE], strict=True)])
            ),
            "lookup_p50_ms": milliseconds(seconds[ELSEWHERE][WARM_UP:], 50),
            "lookup_p99_ms": milliseconds(seconds[ELSEWHERE][WARM_UP:], 99),
            "here_p50_ms": milliseconds(seconds[HERE][WARM_UP:], 50),
            "here_p99_ms": milliseconds(seconds[HERE][WARM_UP:], 99),
        }

    def _edits(self, kb: KnowledgeBase, there: Searcher) -> dict[str, Any]:
        """Delete facts and restore them, and look each one's own key up right after either."""
        self.say("deletes and restores")
        keys = self.measured.keys
        chosen = np.random.default_rng(self.seed).choice(len(keys), NUM_EDITS, replace=False) + 1
        seconds: list[float] = []
        after = {"delete": 0, "restore": 0}
        for verb in after:
            edit = kb.facts.delete if verb == "delete" else kb.facts.restore
            for fact_id in chosen.tolist():
                edit([fact_id], actor=ACTOR, reason=REASON)
                after[verb] += self._finds(there, keys[fact_id - 1], fact_id, seconds)
        candidates = _candidates(there)
        handing = seconds_of(lambda: kb.searcher.prepare(there.current().keyset_id))
        assert candidates.collection.mark(strong=True) is not None
        return {
            "edits": 2 * NUM_EDITS,
            "deleted_but_found": after["delete"],
            "restored_not_found": NUM_EDITS - after["restore"],
            "edited_lookup_p50_ms": milliseconds(seconds, 50),
            "handed_on_seconds": handing,
        }

    def _finds(
        self, there: Searcher, key: npt.NDArray[np.float32], fact_id: int, seconds: list[float]
    ) -> bool:
        started = time.perf_counter()
        (lookup,) = there.find(key[None], checkpoint_id=ELSEWHERE, threshold=-1)
        seconds.append(time.perf_counter() - started)
        return any(hit.fact_id == fact_id for hit in lookup.hits)


def _candidates(there: Searcher) -> CollectionCandidates:
    candidates = there.current().candidates
    assert isinstance(candidates, CollectionCandidates)
    return candidates
