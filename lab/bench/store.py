"""Measures how fast the store ingests, looks up, deletes, forgets and reopens, beside the bare libraries.

Each figure is shown beside that of Faiss or PostgreSQL doing the same work alone on the same data, machine and run,
since ratios carry over to other machines and milliseconds do not. Another backend is measured beside Faiss, too.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql
from sqlalchemy import text

from colmlm.kb import interpreter
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.lookup.collection import Collection
from colmlm.kb.lookup.in_process import FaissCandidates
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.remote import SETTLED_SECONDS, CollectionCandidates
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import MilvusAddress, Settings
from colmlm.lab.bench.machine import is_alive, kill_server, milliseconds, seconds_of, settle
from colmlm.lab.bench.synthetic import MeasuredKeys, documents, exact_top1

CHECKPOINT = "synthetic"
ACTOR, REASON = "bench", "benchmark"
NUM_DELETES = 1000
BATCH = 64
WARM_UP = 50
SHARES = (0.01, 0.1, 0.5)  # of the documents; each is a corpus of its own, and so are the others

_FACTS_OF_CORPUS = """
SELECT f.id FROM fact f JOIN document d ON d.id = f.document_id WHERE d.corpus = :corpus ORDER BY f.id
"""

Say = Callable[[str], None]


@dataclass(slots=True)
class StoreBench:
    """One run, in a directory of its own. Nothing else should run on the machine."""

    measured: MeasuredKeys
    seed: int
    spec: str | None
    num_forgotten: int
    home: Path
    say: Say

    @property
    def num_facts(self) -> int:
        return len(self.measured.keys)

    @property
    def dim(self) -> int:
        return int(self.measured.keys.shape[1])

    def run(self) -> dict[str, Any]:
        """Give the figures. Times are in seconds unless the name says milliseconds; `_vs_` is ours over theirs.

        `keys` says whose keys they are: "synthetic", or a keyset's. Fitting an index finds how many of its lists are
        read; it and training are not part of ingest, adding keys is.
        """
        keys, queries = self.measured.keys, self.measured.queries
        right = exact_top1(keys, queries)
        settings = Settings(home=self.home, actor="bench")
        with KnowledgeBase.open(settings) as kb:
            figures = self._ingest(kb, keys)
            figures |= self._time_lookups(kb, queries, right + 1)  # fact ids start at 1
            figures["in_corpora"] = [*self._lookups_in_corpora(kb, keys, queries, right + 1)]
            figures |= self._time_deletes(kb, keys)
            figures |= self._forget(kb)
            kb.lookups.snapshot()
        figures |= self._reopen(settings, queries[0])
        with KnowledgeBase.open(settings) as kb:
            figures |= self._bare_ingest(kb, keys)
        ingest = self.num_facts / sum(
            figures[f"{step}_seconds"] for step in ("ingest_documents", "ingest_keys", "index_add")
        )
        slower = min(figures["bare_copy_facts_per_s"], figures["bare_add_facts_per_s"])
        return {
            "keys": self.measured.source,
            "facts": self.num_facts,
            "dim": self.dim,
            "seed": self.seed,
            "ingest_facts_per_s": ingest,
            "ingest_vs_bare": ingest / slower,
            **figures,
        }

    def _ingest(self, kb: KnowledgeBase, keys: npt.NDArray[np.float32]) -> dict[str, Any]:
        keyset = kb.keysets.create(CheckpointInfo(CHECKPOINT, CHECKPOINT, self.dim), self.spec)
        self.say("ingesting documents")
        made = [Parsed(document) for document in documents(self.num_facts)]
        started = time.perf_counter()
        ends = [round(len(made) * end) for end in np.cumsum((0, *SHARES))]
        for share, start, end in zip((*SHARES, "rest"), ends, (*ends[1:], len(made)), strict=True):
            kb.corpora.ingest(made[start:end], f"bench-{share}", actor=ACTOR, reason=REASON)
        ingested = time.perf_counter()
        self.say("storing keys")
        fact_ids = np.arange(1, self.num_facts + 1, dtype=np.int64)
        kb.keysets.store_keys(keyset.keyset_id, fact_ids, keys, actor=ACTOR, reason=REASON)
        stored = time.perf_counter()
        self.say("training and filling the index")
        filling: list[float] = []
        with kb.sessions.begin() as session:
            session.execute(text("UPDATE keyset SET state = 'ready'"))
        kb.searcher.prepare(keyset.keyset_id, on_keys=lambda done, total: filling.append(time.perf_counter()))
        fitted = time.perf_counter()
        kb.keysets.activate(keyset.keyset_id)
        settle(kb)
        return {
            "spec": (index := index_of(kb)).spec,
            "lists": index.lists,
            "lists_read": index.lists_read,
            "ingest_documents_seconds": ingested - started,
            "ingest_keys_seconds": stored - ingested,
            "index_train_seconds": filling[0] - stored,
            "index_add_seconds": filling[-1] - filling[0],
            "index_fit_seconds": fitted - filling[-1],
        }

    def _time_lookups(
        self, kb: KnowledgeBase, queries: npt.NDArray[np.float32], right: npt.NDArray[np.int64]
    ) -> dict[str, Any]:
        self.say("lookups")
        index = index_of(kb)
        ours, theirs, round_trips, found, found_bare = [], [], [], [], []
        with statement(kb) as one_row:
            for number, query in enumerate(queries):  # alternating, so that other load affects both
                started = time.perf_counter()
                (lookup,) = kb.lookups.find(query[None], checkpoint_id=CHECKPOINT, threshold=-1)
                looked_up = time.perf_counter()
                ids = search(index, query[None])
                searched = time.perf_counter()
                one_row(int(ids[0]))
                asked = time.perf_counter()
                found.append(lookup.hits[0].fact_id)
                found_bare.append(int(ids[0]))
                if number >= WARM_UP:
                    ours.append(looked_up - started)
                    theirs.append(searched - looked_up)
                    round_trips.append(asked - searched)
        batches = [queries[start : start + BATCH] for start in range(0, len(queries) - BATCH, BATCH)]
        ours_batch = [
            seconds_of(partial(kb.lookups.find, batch, checkpoint_id=CHECKPOINT, threshold=-1))
            for batch in batches
        ]
        theirs_batch = [
            seconds_of(partial(search, index, batch, threads=os.cpu_count() or 1)) for batch in batches
        ]
        lookup_p50, faiss_p50 = milliseconds(ours, 50), milliseconds(theirs, 50)
        round_trip = milliseconds(round_trips, 50)
        batch_rate = BATCH / statistics.median(ours_batch)
        bare_rate = BATCH / statistics.median(theirs_batch)
        return {
            "recall_at_1": float(np.mean(np.array(found) == right)),
            "faiss_recall_at_1": float(np.mean(np.array(found_bare) == right)),
            "lookup_p50_ms": lookup_p50,
            "lookup_p99_ms": milliseconds(ours, 99),
            "faiss_p50_ms": faiss_p50,
            "faiss_p99_ms": milliseconds(theirs, 99),
            "round_trip_p50_ms": round_trip,
            "single_vs_faiss": lookup_p50 / faiss_p50,
            "single_vs_budget": lookup_p50 / (1.5 * faiss_p50 + round_trip),
            "batch_queries_per_s": batch_rate,
            "faiss_batch_queries_per_s": bare_rate,
            "batch_vs_faiss": batch_rate / bare_rate,
        }

    def _lookups_in_corpora(
        self,
        kb: KnowledgeBase,
        keys: npt.NDArray[np.float32],
        queries: npt.NDArray[np.float32],
        nearest: npt.NDArray[np.int64],
    ) -> Iterator[dict[str, float | None]]:
        """Look each query up in one corpus and in all of them, in turns. A share without a document is left out.

        `recall_of_own` is that of the queries whose nearest fact of all is in the corpus. For the others, what is
        nearest there is hardly nearer than what comes next.
        """
        self.say("lookups in one corpus")
        for share in SHARES:
            corpus = f"bench-{share}"
            with kb.sessions() as session:
                ids = np.array(session.scalars(text(_FACTS_OF_CORPUS), {"corpus": corpus}).all(), np.int64)
            if not len(ids):
                continue
            right = ids[exact_top1(keys[ids - 1], queries)]
            scoped, whole, found = [], [], []
            for query in queries:
                started = time.perf_counter()
                (lookup,) = kb.lookups.find(
                    query[None], checkpoint_id=CHECKPOINT, threshold=-1, corpora=(corpus,)
                )
                in_corpus = time.perf_counter()
                kb.lookups.find(query[None], checkpoint_id=CHECKPOINT, threshold=-1)
                whole.append(time.perf_counter() - in_corpus)
                scoped.append(in_corpus - started)
                found.append(lookup.hits[0].fact_id if lookup.hits else 0)
            is_right, is_own = np.array(found) == right, np.isin(nearest, ids)
            p50, whole_p50 = (milliseconds(times[WARM_UP:], 50) for times in (scoped, whole))
            yield {
                "share": share,
                "facts": len(ids),
                "recall_at_1": float(is_right.mean()),
                "recall_of_own": float(is_right[is_own].mean()) if is_own.any() else None,
                "p50_ms": p50,
                "p99_ms": milliseconds(scoped[WARM_UP:], 99),
                "first_ms": 1000 * scoped[0],
                "p50_vs_all": p50 / whole_p50,
            }

    def _time_deletes(self, kb: KnowledgeBase, keys: npt.NDArray[np.float32]) -> dict[str, Any]:
        """Delete single facts, and look each one's own key up right afterwards; it must not be found."""
        self.say("deletes")
        chosen = (
            np.random.default_rng(self.seed).choice(
                self.num_facts, min(NUM_DELETES, self.num_facts // 10), replace=False
            )
            + 1
        )
        seconds, commits, found = [], [], 0
        with statement(kb, "SELECT pg_logical_emit_message(true, %s, %s)") as commit:
            for fact_id in chosen.tolist():
                seconds.append(seconds_of(partial(kb.facts.delete, [fact_id], actor=ACTOR, reason=REASON)))
                commits.append(seconds_of(partial(commit, "bench", "x")))
                (lookup,) = kb.lookups.find(keys[fact_id - 1][None], checkpoint_id=CHECKPOINT, threshold=-1)
                found += any(hit.fact_id == fact_id for hit in lookup.hits)
        return {
            "delete_p50_ms": milliseconds(seconds[WARM_UP:], 50),
            "delete_p99_ms": milliseconds(seconds[WARM_UP:], 99),
            "deleted_but_found": found,
            "bare_commit_p50_ms": milliseconds(commits[WARM_UP:], 50),
            "bare_commit_p99_ms": milliseconds(commits[WARM_UP:], 99),
        }

    def _forget(self, kb: KnowledgeBase) -> dict[str, Any]:
        """Delete many facts in one change, and wait until their keys are physically out of the index."""
        self.say("forgetting")
        candidates = kb.searcher.current().candidates
        live = [
            fact.fact_id for fact in kb.facts.find(limit=self.num_forgotten)
        ]  # in a new base these are also the ids of their keys
        started = time.perf_counter()
        kb.facts.delete(live, actor=ACTOR, reason=REASON)
        committed = time.perf_counter()
        kb.lookups.catch_up()
        gone = time.perf_counter()
        left = len(live) - len(candidates.missing(live))
        assert left == 0, f"{left} forgotten keys are still in the index"
        return {
            "forget_facts": len(live),
            "forget_commit_seconds": committed - started,
            "forget_seconds": gone - started,
        }

    def _reopen(self, settings: Settings, query: npt.NDArray[np.float32]) -> dict[str, Any]:
        """Kill the database and the process that uses it, then starts a process and waits for its first lookup."""
        self.say("killing and reopening")
        np.save(self.home / "query.npy", query)
        command = interpreter.command("-m", "colmlm.lab.bench.clients", "reopen", self.home, CHECKPOINT)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            victim.stdout.readline()
            killed = kill_server(self.home / "postgres")
            victim.send_signal(signal.SIGKILL)
            while any(map(is_alive, killed)):
                time.sleep(0.01)
        started = time.perf_counter()
        with subprocess.Popen([*command, "--leave"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            answered = process.stdout.readline().split()
            seconds = time.perf_counter() - started
        return {"reopen_seconds": seconds, "bytes_per_fact": int(answered[1]) / self.num_facts}

    def _bare_ingest(self, kb: KnowledgeBase, keys: npt.NDArray[np.float32]) -> dict[str, Any]:
        self.say("bare COPY and bare index add")
        with kb.sessions() as session:
            size = session.scalar(text("SELECT pg_database_size(current_database())")) or 0
        copying = copy_seconds(kb, self.home)
        adding = add_seconds(index_of(kb), keys)
        return {
            "bare_copy_facts_per_s": self.num_facts / copying,
            "bare_add_facts_per_s": self.num_facts / adding,
            "database_bytes_per_fact": size / self.num_facts,
        }


# The same work done by the bare libraries: by Faiss alone, and by PostgreSQL alone.

_TABLES = ("document", "fact", "fact_version", "fact_key")
_ONE_ROW = "SELECT value FROM fact_version WHERE fact_id = %s AND to_seq IS NULL"


def index_of(kb: KnowledgeBase) -> KeyIndex:
    """Give the Faiss index that this process answers from."""
    candidates = kb.searcher.current().candidates
    assert isinstance(candidates, FaissCandidates)
    return candidates.index


def search(index: KeyIndex, queries: npt.NDArray[np.float32], threads: int = 1) -> npt.NDArray[np.int64]:
    """Give the nearest id to each query, by Faiss alone with the same index and settings."""
    with index.threads(threads):
        _, ids = index.bare.search(queries, 1)
    found: npt.NDArray[np.int64] = ids[:, 0]
    return found


@contextmanager
def statement(kb: KnowledgeBase, query: str = _ONE_ROW) -> Iterator[Callable[..., object]]:
    """Yield a function that executes one prepared statement on a connection of its own, to time a round trip or a
    commit.
    """
    with kb.searcher.reader.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        yield lambda *values: driver.execute(query.encode(), values, prepare=True)


def add_seconds(index: KeyIndex, keys: npt.NDArray[np.float32]) -> float:
    """Give the seconds that Faiss takes to add all keys in one call. It empties the index first, so call it last."""
    index.bare.reset()
    ids = np.arange(1, len(keys) + 1, dtype=np.int64)
    started = time.perf_counter()
    index.bare.add_with_ids(keys, ids)
    return time.perf_counter() - started


def copy_seconds(kb: KnowledgeBase, folder: Path) -> float:
    """Give the seconds that COPY takes to write the same rows into copies of the tables, with the same indexes.

    The rows come from files in COPY's binary format, since no client could send them faster.
    """
    seconds = 0.0
    with kb.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        connection.execute(text("CREATE SCHEMA bare"))
        for table in map(sql.Identifier, _TABLES):
            file = folder / "rows.copy"
            out = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT BINARY)").format(table)
            with file.open("wb") as stream, driver.cursor() as cursor, cursor.copy(out) as copy:
                for block in copy:
                    stream.write(block)
            driver.execute(sql.SQL("CREATE TABLE bare.{0} (LIKE {0} INCLUDING ALL)").format(table))
            driver.commit()
            into = sql.SQL("COPY bare.{} FROM STDIN (FORMAT BINARY)").format(table)
            started = time.perf_counter()
            with file.open("rb") as stream, driver.cursor() as cursor, cursor.copy(into) as copy:
                while block := stream.read(1 << 18):
                    copy.write(block)
            driver.commit()
            seconds += time.perf_counter() - started
            file.unlink()
        driver.execute("DROP SCHEMA bare CASCADE")
        driver.commit()
    return seconds


# Another backend beside Faiss, on the same facts: two keysets hold the same keys. Each query is looked up in both, one
# after the other, so that other load affects both.

HERE, ELSEWHERE = "here", "elsewhere"  # checkpoints: of Faiss, and of the other backend
NUM_EDITS = 200
INDEX_SECONDS = 600  # for which a server may build its own index
MOST_CANDIDATES = 64


@dataclass(slots=True)
class BackendBench:
    """One run, in a directory of its own. A collection elsewhere is dropped at its end."""

    measured: MeasuredKeys
    seed: int
    backend: str
    spec: str | None
    address: MilvusAddress
    home: Path
    say: Callable[[str], None]

    def run(self) -> dict[str, Any]:
        """Give the figures, of one lookup each: with Faiss here, and with the backend.

        `same_answers` is the share of queries with the same best fact at the same score. `deleted_but_found` and
        `restored_not_found` count lookups of a fact's own key right after the edit. `handed_on_seconds` is what all
        those edits took to be written there. `candidates_needed` is how many candidates have the nearest key of each
        query among them; `candidates_needed_16_bits` how many would, if scores had 16 bits. `bytes_per_key` is the
        memory of a key that torch searches.
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
                collection = collection_held(there)
                index_seconds = self._await_server_index(collection) if collection is not None else 0.0
                figures = self._time_lookups(here, there)
                figures |= self._candidates_needed(there)
                figures |= self._edits(kb, there)
                report = kb.upkeep.fsck()
                here_spec = here.current().candidates.fit.spec
            finally:
                if (collection := collection_held(there)) is not None:
                    collection.drop()
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
        """Store the keys in a keyset of this spec; give lookups in it, and the seconds to build and open its index."""
        keys = self.measured.keys
        keyset = kb.keysets.create(CheckpointInfo(name, name, keys.shape[1]), spec)
        fact_ids = np.arange(1, len(keys) + 1, dtype=np.int64)
        kb.keysets.store_keys(keyset.keyset_id, fact_ids, keys, actor=ACTOR, reason=REASON)
        with kb.sessions.begin() as session:
            session.execute(
                text("UPDATE keyset SET state = 'ready' WHERE id = :id"), {"id": keyset.keyset_id}
            )
        self.say(f"filling {spec or 'the index here'}")
        searcher = kb.lookups.in_keyset(keyset.keyset_id)
        seconds = seconds_of(lambda: kb.searcher.prepare(keyset.keyset_id))
        return searcher, seconds + seconds_of(searcher.current)

    def _await_server_index(self, collection: Collection) -> float:
        """Wait until the server has built its own index and every search sees all keys, and give the seconds."""
        self.say("waiting for the server's own index")
        started = time.perf_counter()
        while not collection.is_indexed():
            if time.perf_counter() - started > INDEX_SECONDS:
                raise TimeoutError(f"{collection.where} has no index after {INDEX_SECONDS} s")
            time.sleep(1)
        seconds = time.perf_counter() - started
        time.sleep(SETTLED_SECONDS)
        return seconds

    def _time_lookups(self, here: Searcher, there: Searcher) -> dict[str, Any]:
        self.say("lookups")
        queries, right = self.measured.queries, self._nearest() + 1
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
            **self._time_searches(here, there),
        }

    def _nearest(self) -> npt.NDArray[np.int64]:
        """Give the position of the nearest key to each query, of the keys as they are stored."""
        return exact_top1(self.measured.keys.astype(STORED).astype(np.float32), self.measured.queries)

    def _time_searches(self, here: Searcher, there: Searcher) -> dict[str, float]:
        """Time searches alone, without the database, of one query and of a batch."""
        self.say("searches")
        seconds: dict[str, list[float]] = {}
        queries = self.measured.queries[: 4 * BATCH]
        for size in (1, BATCH):
            for start in range(0, len(queries), size):
                for prefix, searcher in (("here_", here), ("", there)):
                    some, candidates = queries[start : start + size], searcher.current().candidates
                    took = seconds_of(partial(candidates.search, some, candidates.over_fetch(1)))
                    seconds.setdefault(f"{prefix}search_of_{size}_p50_ms", []).append(took)
        return {name: milliseconds(times, 50) for name, times in seconds.items()}

    def _candidates_needed(self, there: Searcher) -> dict[str, Any]:
        """Count the candidates that have every query's nearest key among them, by the scores of the backend.

        Also count them for scores of 16 bits, in which a key that ties with the nearest may come before it.
        """
        queries, right = self.measured.queries, self._nearest()
        candidates = there.current().candidates
        _, found = candidates.search(queries, MOST_CANDIDATES)
        is_right = found == candidates.ids[right][:, None]
        ranks = np.where(is_right.any(axis=1), is_right.argmax(axis=1) + 1, MOST_CANDIDATES + 1)
        stored, most = self.measured.keys.astype(STORED).astype(np.float32), 0
        for start in range(0, len(queries), BATCH):
            scores = (queries[start : start + BATCH].astype(STORED).astype(np.float32) @ stored.T).astype(
                STORED
            )
            own = scores[np.arange(len(scores)), right[start : start + BATCH]]
            most = max(most, int((scores >= own[:, None]).sum(axis=1).max()))
        figures: dict[str, Any] = {
            "candidates_needed": int(ranks.max()),
            "nearest_is_first": float(np.mean(ranks == 1)),
            "candidates_needed_16_bits": most,
        }
        if (memory := there.memory) is not None:
            taken = memory.device_bytes + memory.main_bytes
            figures |= {"memory": asdict(memory), "bytes_per_key": taken / memory.capacity}
        return figures

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
                after[verb] += self._finds_fact(there, keys[fact_id - 1], fact_id, seconds)
        handing = seconds_of(lambda: kb.searcher.prepare(there.current().keyset_id))
        if (collection := collection_held(there)) is not None:
            assert collection.mark(strong=True) is not None
        return {
            "edits": 2 * NUM_EDITS,
            "deleted_but_found": after["delete"],
            "restored_not_found": NUM_EDITS - after["restore"],
            "edited_lookup_p50_ms": milliseconds(seconds, 50),
            "handed_on_seconds": handing,
        }

    def _finds_fact(
        self, there: Searcher, key: npt.NDArray[np.float32], fact_id: int, seconds: list[float]
    ) -> bool:
        started = time.perf_counter()
        (lookup,) = there.find(key[None], checkpoint_id=ELSEWHERE, threshold=-1)
        seconds.append(time.perf_counter() - started)
        return any(hit.fact_id == fact_id for hit in lookup.hits)


def collection_held(there: Searcher) -> Collection | None:
    """Give the collection elsewhere that has the keys; None where they are in this process."""
    candidates = there.current().candidates
    return candidates.collection if isinstance(candidates, CollectionCandidates) else None
