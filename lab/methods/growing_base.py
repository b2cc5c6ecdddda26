"""Fills a temporary knowledge base with unrelated facts, and measures it as it grows.

The first facts are those of a corpus, with their texts and keys. The added facts have values of these facts and
synthetic keys, drawn from the normal distribution with the mean and covariance of the real keys, and scaled to length
1. They fill the space of the real keys, without its clusters; how near they come to the questions is measured too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select, text

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, Parsed
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import FactRow

REAL, FILLER = "real", "filler"
ACTOR, REASON = "evaluate growth", "colmlm evaluate growth"
CHUNK = 50_000  # keys made at a time
FACTS_PER_DOCUMENT = 20

Floats = NDArray[np.float32]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CorpusPrefix:
    """The first documents of a corpus, and a key of each of their facts in one keyset, by the fact's place."""

    checkpoint: CheckpointInfo
    threshold: float
    documents: list[AnnotatedDocument]
    keys: dict[tuple[str, int], Floats]

    @classmethod
    def of(cls, kb: KnowledgeBase, corpus: str, checkpoint: CheckpointInfo, most: int) -> CorpusPrefix:
        """Reads whole documents with at most `most` facts in all. Facts without a key are left out."""
        keyset = kb.keysets.active()
        places = {fact.fact_id: place(fact) for fact in kb.facts.every(corpus)}
        ids, keys_ND = kb.keysets.keys(keyset.keyset_id, corpus=corpus)
        by_place = {places[i]: key for i, key in zip(ids.tolist(), keys_ND, strict=True) if i in places}
        documents: list[AnnotatedDocument] = []
        left = most
        for one in kb.corpora.export(corpus):
            if one.facts and len(one.facts) <= left:
                documents.append(one)
                left -= len(one.facts)
        chosen = {(one.external_id, span.start) for one in documents for span in one.facts}
        return cls(
            checkpoint, keyset.threshold, documents, {p: k for p, k in by_place.items() if p in chosen}
        )


@dataclass(frozen=True, slots=True)
class Cloud:
    """Synthetic keys with the mean and covariance of given ones. Key i is the same however many are drawn."""

    mean_D: Floats
    axes_RD: Floats
    seed: int

    @classmethod
    def of(cls, keys_ND: Floats, seed: int) -> Cloud:
        mean_D = keys_ND.mean(axis=0)
        _, scales_R, axes_RD = np.linalg.svd(keys_ND - mean_D, full_matrices=False)
        spread_R1 = (scales_R / np.sqrt(len(keys_ND)))[:, None]
        return cls(mean_D, (spread_R1 * axes_RD).astype(np.float32), seed)

    def draw(self, start: int, end: int) -> Iterator[Floats]:
        """Yields the keys from number `start` up to `end`, in chunks."""
        for chunk in range(start // CHUNK, -(-end // CHUNK)):
            rng = np.random.default_rng([self.seed, chunk])
            first = chunk * CHUNK
            rows = rng.standard_normal((CHUNK, len(self.axes_RD)), np.float32)
            # The whole chunk is made and then cut, since the last bits of a product depend on its number of rows.
            keys = rows @ self.axes_RD + self.mean_D
            keys /= np.linalg.norm(keys, axis=1, keepdims=True)
            yield keys[max(0, start - first) : end - first]


@dataclass(slots=True)
class Growing:
    """The knowledge base that grows, in a directory of its own.

    `nearest` is the greatest cosine of each question with a synthetic key so far.
    """

    kb: KnowledgeBase
    source: CorpusPrefix
    values: Sequence[str]
    cloud: Cloud
    queries_QD: Floats
    keyset_id: int
    empty_bytes: int
    facts: int
    nearest_Q: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.nearest_Q = np.full(len(self.queries_QD), -1, np.float32)

    @classmethod
    def start(cls, kb: KnowledgeBase, source: CorpusPrefix, queries_QD: Floats, seed: int) -> Growing:
        """Ingests the real facts and stores their keys."""
        empty = database_bytes(kb)
        keyset = kb.keysets.create(source.checkpoint)
        kb.corpora.ingest((Parsed(one) for one in source.documents), REAL, actor=ACTOR, reason=REASON)
        facts = list(kb.facts.every(REAL))
        keyed = [fact for fact in facts if place(fact) in source.keys]
        keys_ND = np.stack([source.keys[place(fact)] for fact in keyed])
        ids = np.array([fact.fact_id for fact in keyed], dtype=np.int64)
        kb.keysets.store_keys(keyset.keyset_id, ids, keys_ND, actor=ACTOR, reason=REASON)
        kb.keysets.finish(keyset.keyset_id)
        kb.keysets.set_threshold(keyset.keyset_id, source.threshold)
        values = [fact.value for fact in facts]
        cloud = Cloud.of(keys_ND, seed)
        return cls(kb, source, values, cloud, queries_QD, keyset.keyset_id, empty, len(facts))

    @property
    def real(self) -> int:
        return len(self.values)

    def grow(self, size: int, say: Say) -> None:
        """Adds synthetic facts until there are `size`, and rebuilds the index for that size."""
        start, end = self.facts - self.real, size - self.real
        if end > start:
            say(f"{size} facts: ingesting")
            last = self._last_id()
            documents = (Parsed(one) for one in filler(self.values, start, end, self.cloud.seed))
            self.kb.corpora.ingest(documents, FILLER, actor=ACTOR, reason=REASON)
            ids = self._ids_after(last)
            say(f"{size} facts: storing keys")
            done = 0
            for keys in self.cloud.draw(start, end):
                chosen = ids[done : done + len(keys)]
                self.kb.keysets.store_keys(self.keyset_id, chosen, keys, actor=ACTOR, reason=REASON)
                self.nearest_Q = np.maximum(self.nearest_Q, (self.queries_QD @ keys.T).max(axis=1))
                done += len(keys)
            self.facts = size
        say(f"{size} facts: building the index")
        self.kb.lookups.rebuild()
        with self.kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))  # else autovacuum would within a measurement
            connection.execute(text("CHECKPOINT"))

    def _last_id(self) -> int:
        with self.kb.sessions() as session:
            return session.scalar(select(FactRow.id).order_by(FactRow.id.desc()).limit(1)) or 0

    def _ids_after(self, last: int) -> NDArray[np.int64]:
        with self.kb.sessions() as session:
            found = session.scalars(select(FactRow.id).where(FactRow.id > last).order_by(FactRow.id)).all()
        return np.array(found, dtype=np.int64)

    def database_bytes(self) -> int:
        """Gives by how many bytes the database has grown."""
        return database_bytes(self.kb) - self.empty_bytes

    def key_bytes(self) -> int:
        """Gives the bytes of the keys in the database, with their indexes."""
        with self.kb.sessions() as session:
            name = {"name": f"fact_key_{self.keyset_id:d}"}
            return int(
                session.scalar(text("SELECT pg_total_relation_size(CAST(:name AS regclass))"), name) or 0
            )

    def index_bytes(self) -> int:
        """Gives the bytes of the index's snapshot, which are nearly all that it holds in memory."""
        files = self.kb.settings.index_directory.rglob("*.faiss")
        return sum(file.stat().st_size for file in files)

    def latencies(self) -> tuple[list[float], list[float]]:
        """Gives the seconds of each question's lookup, one after another, and of the search within it."""
        index = self.kb.searcher.current().candidates
        lookups, searches = [], []
        for query in self.queries_QD:
            begun = time.perf_counter()
            self.kb.lookups.find(query[None], checkpoint_id=self.source.checkpoint.checkpoint_id)
            looked_up = time.perf_counter()
            index.search(query[None], index.over_fetch(1))
            lookups.append(looked_up - begun)
            searches.append(time.perf_counter() - looked_up)
        return lookups, searches


def open_empty(home: Path) -> KnowledgeBase:
    """Opens a new knowledge base with a database of its own under `home`."""
    settings = Settings(home=home, actor=ACTOR)
    engine = database.connect(settings)
    database.migrate(engine)
    engine.dispose()
    return KnowledgeBase.open(settings)


def filler(values: Sequence[str], start: int, end: int, seed: int) -> Iterator[AnnotatedDocument]:
    """Yields documents of 20 facts each, numbers `start` up to `end`, with values drawn from those given."""
    rng = np.random.default_rng([seed, start, end])
    for number in count(start, FACTS_PER_DOCUMENT):
        if number >= end:
            return
        said, spans, length = [], [], 0
        for fact in range(number, min(number + FACTS_PER_DOCUMENT, end)):
            value = values[int(rng.integers(len(values)))]
            before = f"Of thing {fact} is said: "
            spans.append(FactSpan(length + len(before), length + len(before) + len(value), value))
            said.append(f"{before}{value}. ")
            length += len(said[-1])
        yield AnnotatedDocument(f"filler-{number:09d}", "".join(said), tuple(spans))


def database_bytes(kb: KnowledgeBase) -> int:
    with kb.sessions() as session:
        return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def place(fact: FactRecord) -> tuple[str, int]:
    return (fact.source.external_id, fact.source.start) if fact.source else ("", fact.fact_id)
