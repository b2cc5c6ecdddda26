"""The stages of a base's life. Each is done by a process of its own and gives its figures.

A stage that was broken off is done again: ingesting and storing keys then go on where they stopped, and say how much of
it they did themselves. `seconds` is what the stage took, without making its synthetic facts and keys; opening the base
is in none but `restart`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import func, select, text

from colmlm.cli.output import note, progress
from colmlm.kb.backup.write import verify_backup, write_backup
from colmlm.kb.corpus.format import Parsed
from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.log.signing import signing_key
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import FactKeyRow, FactRow, FactVersionRow
from colmlm.lab.bench.machine import milliseconds, seconds_of
from colmlm.lab.bench.synthetic import (
    Positions,
    Vectors,
    documents,
    exact_top1_of,
    fact_text,
    key_chunks,
    queries_among,
)

CHECKPOINT = "synthetic"
ACTOR, REASON = "bench", "benchmark"
NUM_EDITS, NUM_ERASED, BATCH, WARM_UP = 1_000, 10, 64, 50
MIB = 1 << 20

Figures = dict[str, Any]


def ingest(kb: KnowledgeBase, sized: SizedBase) -> Figures:
    """Ingests all documents, made as they are read."""
    with progress("Documents ingested") as advance:
        total = -(-sized.facts // 20)
        report = kb.corpora.ingest(
            map(Parsed, documents(sized.facts)),
            "bench",
            on_document=lambda n: advance(n, total),
            actor=ACTOR,
            reason=REASON,
        )
    return {"facts": report.facts}


def keys(kb: KnowledgeBase, sized: SizedBase) -> Figures:
    """Stores a key for each fact."""
    keyset = kb.keysets.create(CheckpointInfo(CHECKPOINT, CHECKPOINT, sized.dim))
    stored, seconds, used = kb.keysets.show(keyset.keyset_id).num_keys, 0.0, 0.0
    for start, rows in sized.keys("Keys stored", first=stored):
        first = max(start, stored)
        some, rows = _fact_ids(kb, first, len(rows) - (first - start)), rows[first - start :]
        started, before = time.perf_counter(), time.process_time()
        kb.keysets.store_keys(keyset.keyset_id, some, rows, actor=ACTOR, reason=REASON)
        seconds, used = seconds + time.perf_counter() - started, used + time.process_time() - before
    return {"keys": sized.facts - stored, "seconds": seconds, "cpu_seconds": used}


def _fact_ids(kb: KnowledgeBase, first: int, number: int) -> Positions:
    """Gives the ids of so many facts as they were ingested, from the one at position `first` on.

    They have gaps where an ingest was killed.
    """
    with kb.sessions() as session:
        found = session.scalars(select(FactRow.id).order_by(FactRow.id).offset(first).limit(number))
        return np.array(found.all(), dtype=np.int64)


def settle(kb: KnowledgeBase, _: SizedBase) -> Figures:
    """Does at once what PostgreSQL does by and by after an ingest."""
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
        connection.execute(text("CHECKPOINT"))
    return {}


def index(kb: KnowledgeBase, _: SizedBase) -> Figures:
    """Builds the index from the database, fits it, and writes its snapshot."""
    (keyset,) = kb.keysets.all()
    started, added = time.perf_counter(), []
    with progress("Keys indexed") as advance:

        def on_keys(done: int, total: int) -> None:
            added.append(time.perf_counter())
            advance(done, total)

        if keyset.state == "building":
            fit = kb.keysets.finish(keyset.keyset_id, on_keys).index_fit
        else:  # it is measured again
            fit = kb.keysets.build(keyset.keyset_id, on_keys=on_keys).fit
    return {
        "train_seconds": added[0] - started if added else 0.0,
        "add_seconds": added[-1] - added[0] if added else 0.0,
        "spec": fit and fit.spec,
        "lists_read": fit and fit.lists_read,
        "spare": fit and fit.spare,
        "fitted_recall": fit and fit.recall,
    }


def lookup(kb: KnowledgeBase, sized: SizedBase) -> Figures:
    """Looks up queries one by one, and in batches, with the index open."""
    queries, nearest = sized.queries()
    find = partial(kb.lookups.find, checkpoint_id=CHECKPOINT, threshold=-1)
    find(queries[:1])
    seconds, right = [], 0
    for query, position in zip(queries, nearest.tolist(), strict=True):
        started = time.perf_counter()
        (found,) = find(query[None])
        seconds.append(time.perf_counter() - started)
        right += bool(found.hits) and found.hits[0].value == fact_text(position).value
    batches = [queries[start : start + BATCH] for start in range(0, len(queries) - BATCH, BATCH)]
    batched = [seconds_of(partial(find, batch)) for batch in batches]
    return {
        "queries": len(queries),
        "recall_at_1": right / len(queries),
        "p50_ms": milliseconds(seconds[WARM_UP:], 50),
        "p99_ms": milliseconds(seconds[WARM_UP:], 99),
        "batched_per_s": BATCH / float(np.median(batched)) if batched else None,
    }


def edit(kb: KnowledgeBase, sized: SizedBase) -> Figures:
    """Corrects facts one by one."""
    return _edited(
        kb,
        sized,
        lambda fact_id: kb.facts.edit(fact_id, f"corrected {fact_id}", actor=ACTOR, reason=REASON),
        "edit",
    )


def delete(kb: KnowledgeBase, sized: SizedBase) -> Figures:
    """Deletes facts one by one, and looks each one's own key up right afterwards; it must not be found."""
    find = partial(kb.lookups.find, checkpoint_id=CHECKPOINT, threshold=-1)
    found = 0

    def once(fact_id: int) -> None:
        kb.facts.delete([fact_id], actor=ACTOR, reason=REASON)

    def after(fact_id: int) -> None:
        nonlocal found
        with kb.sessions() as session:
            stored = session.scalars(select(FactKeyRow.key).where(FactKeyRow.fact_id == fact_id)).one()
        (lookup,) = find(keysets.decode_keys([stored], sized.dim))
        found += any(hit.fact_id == fact_id for hit in lookup.hits)

    return _edited(kb, sized, once, "delete", after) | {"deleted_but_found": found}


def _edited(
    kb: KnowledgeBase,
    sized: SizedBase,
    once: Callable[[int], object],
    said: str,
    after: Callable[[int], object] = lambda _: None,
) -> Figures:
    seconds = []
    with progress(f"Facts: {said}") as advance:
        chosen = _live(kb, sized, min(NUM_EDITS, sized.facts // 10))
        for done, fact_id in enumerate(chosen, start=1):
            seconds.append(seconds_of(partial(once, fact_id)))
            after(fact_id)
            advance(done, len(chosen))
    return {
        "edits": len(seconds),
        "seconds": sum(seconds),
        "p50_ms": milliseconds(seconds[WARM_UP:], 50),
        "p99_ms": milliseconds(seconds[WARM_UP:], 99),
    }


def _live(kb: KnowledgeBase, sized: SizedBase, number: int) -> list[int]:
    """Chooses live facts from anywhere in the base."""
    with kb.sessions() as session:
        last = session.scalar(select(func.max(FactRow.id))) or 0
        some = np.unique(np.random.default_rng(sized.seed).integers(1, last + 1, size=4 * number))
        live = select(FactVersionRow.fact_id).where(
            FactVersionRow.to_seq.is_(None), FactVersionRow.fact_id == func.any(some.tolist())
        )
        there = np.array(session.scalars(live).all())
    return np.random.default_rng(sized.seed).permutation(there)[:number].tolist()  # type: ignore[no-any-return]


def erase(kb: KnowledgeBase, sized: SizedBase) -> Figures:
    """Erases facts to level 2: out of the tables, the index and its snapshot."""
    report = Erasure(kb).erase(_live(kb, sized, NUM_ERASED), on_step=note, actor=ACTOR, reason=REASON)
    return {"facts": NUM_ERASED, "level": report.level}


def snapshot(kb: KnowledgeBase, _: SizedBase) -> Figures:
    """Writes the snapshot of an open index."""
    kb.lookups.catch_up()
    return {"seconds": seconds_of(kb.lookups.snapshot)}


def restart(kb: KnowledgeBase, sized: SizedBase) -> Figures:
    """Answers a first query in a process that has nothing open, from the snapshot."""
    queries, _ = sized.queries()
    (found,) = kb.lookups.find(queries[:1], checkpoint_id=CHECKPOINT, threshold=-1)
    return {"hits": len(found.hits)}


def fsck(kb: KnowledgeBase, _: SizedBase) -> Figures:
    """Checks everything against everything."""
    report = kb.upkeep.fsck()
    return {"ok": report.ok, "live_facts": report.live_facts, "index_ids": report.index_ids}


def backup(kb: KnowledgeBase, sized: SizedBase) -> Figures:
    """Writes a backup."""
    with progress("Backup: MiB written") as advance:
        made = write_backup(
            kb,
            sized.backup,
            signing_key(sized.settings.home),
            replace=True,
            on_bytes=lambda done: advance(done // MIB, None),
        )
    return {"bytes": made.num_bytes}


def verify(_: KnowledgeBase, sized: SizedBase) -> Figures:
    """Reads the backup to its last byte."""
    with progress("Backup: MiB read") as advance:
        found = verify_backup(sized.backup, lambda done: advance(done // MIB, None))
    return {"facts": found.rows["fact"]}


def purge(kb: KnowledgeBase, _: SizedBase) -> Figures:
    """Takes what was erased out of the files: rewrites the tables and clears the log of writes."""
    report = Erasure(kb).finish(on_step=note)
    return {"level": report.level}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage by name, and how it is done. `opens` says that opening the base counts."""

    name: str
    do: Callable[[KnowledgeBase, SizedBase], Figures]
    opens: bool = False


_IN_ORDER = (
    ingest, keys, settle, index, lookup, edit, delete, erase, snapshot, restart, fsck, backup, verify, purge,
)  # fmt: skip
STAGES = {do.__name__: Stage(do.__name__, do, opens=do is restart) for do in _IN_ORDER}


# The synthetic base that is measured: how many facts, of which width, where; and its keys and queries, as a
# stream.

NUM_QUERIES = 1_000


@dataclass(frozen=True, slots=True)
class SizedBase:
    """A base of so many facts in a directory. Its keys are made again, a chunk at a time, whenever they are needed."""

    directory: Path
    facts: int
    dim: int
    seed: int

    @property
    def settings(self) -> Settings:
        return Settings(home=self.directory / "home", actor="bench")

    @property
    def backup(self) -> Path:
        return self.directory / "size.backup"

    def keys(self, said: str, first: int = 0) -> Iterator[tuple[int, Vectors]]:
        """Gives the keys from the chunk with position `first` on, each chunk with the position of its first key."""
        with progress(said) as advance:
            for start, keys in key_chunks(self.facts, self.dim, seed=self.seed, first=first):
                yield start, keys
                advance(start + len(keys), self.facts)

    def make_queries(self) -> None:
        """Makes queries and finds the exact nearest key of each, in two passes over all keys."""
        number = min(NUM_QUERIES, self.facts // 8)
        queries = queries_among(self.facts, self._keys_at, number, seed=self.seed)
        nearest = exact_top1_of(self.keys("Keys compared with every query"), queries)
        np.save(self.directory / "queries.npy", queries)
        np.save(self.directory / "nearest.npy", nearest)

    def queries(self) -> tuple[Vectors, Positions]:
        """Gives the queries [n, d] with the positions [n] of their nearest keys."""
        return np.load(self.directory / "queries.npy"), np.load(self.directory / "nearest.npy")

    def _keys_at(self, positions: Positions) -> Vectors:
        found = np.empty((len(positions), self.dim), np.float32)
        for start, keys in self.keys("Keys read to make queries of"):
            here = (positions >= start) & (positions < start + len(keys))
            found[here] = keys[positions[here] - start]
        return found
