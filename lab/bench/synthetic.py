"""Makes any number of synthetic keys, queries and facts, from the same random draws on every machine for a seed.

The last bits of keys and queries depend on the processor, as those of any matrix product do.

Keys lie near a curved surface of few dimensions, as the states of a network do. Uniformly random vectors of hundreds of
dimensions are all about equally far from each other, so that no index could find any structure.
Fact `i` belongs to document ``i // FACTS_PER_DOCUMENT``, and key `i` is its key.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import faiss as untyped_faiss
import numpy as np
import numpy.typing as npt

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.corpus.release import ENTRIES, IDS, INDEX
from colmlm.kb.errors import InvalidValue, KeysetMismatch
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keysets import context_keys
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.specs import FLAT_UP_TO, default_nlist
from colmlm.kb.service import KnowledgeBase

FACTS_PER_DOCUMENT = 20
KEYS_PER_CHUNK = 50_000  # keys made at a time, so that memory holds one chunk beside all keys
OFF_SURFACE = 0.1  # how far a key lies from the surface, as a share of its length

Vectors = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]

_QUALITIES = ("colour", "weight", "maker", "owner", "origin")


@dataclass(frozen=True, slots=True)
class FactText:
    """The texts stored with a key: the value, a question that asks for it, and the passage that contains it."""

    value: str
    question: str
    source: str


def synthetic_keys(num: int, dim: int, *, seed: int, intrinsic_dim: int = 32) -> Vectors:
    """Make unit vectors [num, dim] near a surface of `intrinsic_dim` dimensions.

    The first n of a larger set equal the set of n, up to the rounding of a matrix product.
    """
    surface = np.random.default_rng([seed, 0])
    hidden = 4 * intrinsic_dim
    bend = surface.standard_normal((intrinsic_dim, hidden), np.float32) / np.sqrt(
        intrinsic_dim, dtype=np.float32
    )
    spread = surface.standard_normal((hidden, dim), np.float32)
    keys = np.empty((num, dim), np.float32)
    for start in range(0, num, KEYS_PER_CHUNK):
        chunk, size = start // KEYS_PER_CHUNK + 1, min(KEYS_PER_CHUNK, num - start)
        latent = np.random.default_rng([seed, chunk, 0]).standard_normal((size, intrinsic_dim), np.float32)
        rows = np.tanh(latent @ bend) @ spread
        normalize(rows)
        off = np.random.default_rng([seed, chunk, 1]).standard_normal(rows.shape, np.float32)
        off *= np.float32(OFF_SURFACE / np.sqrt(dim))
        rows += off
        normalize(rows)
        keys[start : start + size] = rows
    return keys


def queries_near(keys: Vectors, num: int, *, seed: int, noise: float = 0.8) -> Vectors:
    """Make unit vectors [num, dim], each a sampled key that was moved by `noise` of its length.

    Half of the way is towards another key, so that it stays near the surface. The sampled key need not be the nearest
    any more; `exact_top1` finds that.
    """
    random = np.random.default_rng([seed, len(keys)])
    sampled = random.integers(len(keys), size=num)
    others = (sampled + random.integers(1, len(keys), size=num)) % len(keys)
    near, towards = keys[sampled], keys[others] - keys[sampled]
    normalize(towards)
    anywhere = random.standard_normal(near.shape, np.float32)
    normalize(anywhere)
    towards += anywhere
    normalize(towards)
    queries: Vectors = near + np.float32(noise) * towards
    normalize(queries)
    return queries


def exact_top1(keys: Vectors, queries: Vectors, *, block: int = KEYS_PER_CHUNK) -> Positions:
    """Give the position of the key with the largest inner product for each query, by exhaustive search in blocks."""
    best = np.full(len(queries), -np.inf, np.float32)
    found = np.zeros(len(queries), np.int64)
    rows = np.arange(len(queries))
    for start in range(0, len(keys), block):
        scores = queries @ keys[start : start + block].T
        top = scores.argmax(axis=1)
        score = scores[rows, top]
        better = score > best
        best[better], found[better] = score[better], start + top[better]
    return found


def normalize(vectors: Vectors) -> None:
    """Scale each row to length 1, in place."""
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)


def fact_text(fact: int) -> FactText:
    """Give the texts of fact number `fact`. No value is part of another, so a search for one finds only that one."""
    thing, ordinal = divmod(fact, FACTS_PER_DOCUMENT)
    quality = f"{_QUALITIES[ordinal % len(_QUALITIES)]} {ordinal // len(_QUALITIES) + 1}"
    value = f"value {fact:09d}"
    return FactText(
        value, f"What is {quality} of thing {thing}?", f"Of thing {thing}, {quality} is {value}. "
    )


def documents(num_facts: int) -> Iterator[AnnotatedDocument]:
    """Yield documents of 20 facts each, in the order of their facts; the last one holds the rest."""
    for thing, first in enumerate(range(0, num_facts, FACTS_PER_DOCUMENT)):
        yield _document(thing, range(first, min(first + FACTS_PER_DOCUMENT, num_facts)))


def _document(thing: int, facts: range) -> AnnotatedDocument:
    passages, spans, length = [], [], 0
    for fact in facts:
        text = fact_text(fact)
        length += len(text.source)
        end = length - len(". ")
        spans.append(FactSpan(end - len(text.value), end, text.value, text.question, text.value))
        passages.append(text.source)
    return AnnotatedDocument(f"thing-{thing:07d}", "".join(passages), tuple(spans), title=f"Thing {thing}")


# The keys that a run of the store's bench stores, one for each of its facts, and the queries that it asks.
#
# They are synthetic, or those of a keyset of a base and the questions of its facts as the keyset's model asks
# them.

NUM_QUERIES = 1000
LEAST = 600  # keys: of fewer too little is deleted and asked to measure anything
_ENCODED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class MeasuredKeys:
    """Keys [n, d] and queries [m, d], and where they are from."""

    keys: npt.NDArray[np.float32]
    queries: npt.NDArray[np.float32]
    source: str = "synthetic"

    @classmethod
    def synthetic(cls, num_facts: int, dim: int, seed: int) -> Self:
        keys = synthetic_keys(num_facts, dim, seed=seed)
        return cls(keys, queries_near(keys, _num_queries(num_facts), seed=seed))

    @classmethod
    def of_keyset(
        cls, kb: KnowledgeBase, keyset_id: int, encoder: Encoder, num_facts: int, seed: int
    ) -> Self:
        """Read up to so many context keys of live facts, and ask some of these facts' questions.

        Raises `KeysetMismatch` where another checkpoint made the keys, and `InvalidValue` where they are too few.
        """
        checkpoint_id = encoder.checkpoint.checkpoint_id
        with kb.sessions() as session:
            keyset = keysets.keyset_head(session, keyset_id)
            if keyset.checkpoint_id != checkpoint_id:
                raise KeysetMismatch(checkpoint_id, keyset.checkpoint_id, keyset_id)
            fact_ids, keys = context_keys(session, keyset_id, None)
        fact_ids, keys = fact_ids[:num_facts], keys[:num_facts]
        wanted = _num_queries(len(keys))
        some = np.random.default_rng(seed).permutation(fact_ids)[
            : 2 * wanted
        ]  # not every fact has a question
        asked = [fact.question for fact in kb.facts.show_many(some.tolist()) if fact.question][:wanted]
        if len(keys) < LEAST or len(asked) < wanted:
            raise InvalidValue("keyset", f"{len(keys)} keys and {len(asked)} questions are too few")
        return cls(keys, _encode_questions(encoder, asked), f"keyset {keyset_id}")


def _num_queries(num_facts: int) -> int:
    return min(NUM_QUERIES, num_facts // 8)


def _encode_questions(encoder: Encoder, questions: list[str]) -> npt.NDArray[np.float32]:
    parts = [
        encoder.encode_questions(questions[start : start + _ENCODED_AT_ONCE])
        for start in range(0, len(questions), _ENCODED_AT_ONCE)
    ]
    return np.concatenate(parts).astype(np.float32)


# Makes releases of any size in the paper's form, with synthetic facts and keys, for tests and benchmarks.
#
# The entries come in another order than the keys, as in a store that several processes wrote.

faiss: Any = untyped_faiss  # its type stubs lack half of the methods that SWIG generates
TRAINED_PER_LIST = 39


def paper_index(num_facts: int, dim: int) -> str:
    """Give the paper's factory string, with fewer lists where there are fewer keys."""
    lists = default_nlist(num_facts) if num_facts > FLAT_UP_TO else max(1, num_facts // 256)
    bits = "" if num_facts >= 256 * TRAINED_PER_LIST else "x4"
    return f"OPQ{dim // 4},IVF{lists},PQ{dim // 4}{bits}"


def make_release(
    folder: Path, keys: npt.NDArray[np.float32], *, spec: str | None = None, seed: int = 0
) -> None:
    """Write a release into this folder: fact n is `fact_text(n)` with key n; `spec` is the index's factory string."""
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(keys))
    with (folder / IDS).open("w", encoding="ascii") as ids:
        ids.writelines(f"e{number:09d}\n" for number in range(len(keys)))
    with closing(sqlite3.connect(folder / ENTRIES)) as entries:
        entries.execute("CREATE TABLE entries (entry_id TEXT PRIMARY KEY, data TEXT)")
        with entries:
            entries.executemany("INSERT INTO entries VALUES (?, ?)", _rows(order))
    faiss.write_index(_index(keys, spec or paper_index(*keys.shape)), str(folder / INDEX))


def _rows(order: npt.NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    for number in order.tolist():
        sample, fact_idx = divmod(number, FACTS_PER_DOCUMENT)
        about = {"sample_id": f"s{sample:07d}", "fact_idx": fact_idx}
        entry = {"id": f"e{number:09d}", "fact_span": fact_text(number).value, "metadata": about}
        yield entry["id"], json.dumps(entry)  # type: ignore[misc]


def _index(keys: npt.NDArray[np.float32], spec: str) -> Any:
    index = faiss.index_factory(keys.shape[1], spec, faiss.METRIC_INNER_PRODUCT)
    ivf = faiss.try_extract_index_ivf(index)
    lists = 1 if ivf is None else ivf.nlist
    if isinstance(codes := ivf and faiss.downcast_index(ivf), faiss.IndexIVFPQ):
        codes.do_polysemous_training = False  # takes 1.6 s for each byte of a code
    if spec.startswith("OPQ"):
        _spare_rotation(index)
    index.train(keys[: max(256 * TRAINED_PER_LIST, TRAINED_PER_LIST * lists)])
    for start in range(0, len(keys), KEYS_PER_CHUNK):
        some = keys[start : start + KEYS_PER_CHUNK]
        if isinstance(index, faiss.IndexIDMap):
            index.add_with_ids(some, np.arange(start, start + len(some)))
        else:
            index.add(some)
    return index


def _spare_rotation(index: Any) -> None:
    """Shorten the training of a rotation, which says little of an import and would take minutes."""
    opq = faiss.downcast_VectorTransform(index.chain.at(0))
    opq.niter, opq.max_train_points = 4, 64 * 256
    opq.pq = faiss.ProductQuantizer(opq.d_out, opq.M, 4)
    index.referenced_objects = [*getattr(index, "referenced_objects", []), opq.pq]  # Faiss does not own it


# Keys without a model: a direction that depends only on the text, so that rekeys take no minutes.
#
# Checkpoints have the same directions, each turned in its own way: a map between their keys can be found, as between
# those of a checkpoint and of one that was trained on from it.

DIM = 32


@dataclass(frozen=True, slots=True)
class HashEncoder:
    """Keys a fact by its question, which then finds it with a score of about 1; any other question scores far below.

    Another `number` is another checkpoint, with a space of its own.
    """

    number: int
    dim: int = DIM

    @property
    def checkpoint(self) -> CheckpointInfo:
        return CheckpointInfo(f"faults-{self.number}", f"hash encoder {self.number}", self.dim)

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        return [self.encode_questions([str(span.question) for span in d.facts]) for d in documents]

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        rows = [_direction(question, self.dim) for question in questions]
        return np.stack(rows) @ _turn(self.number, self.dim) if rows else np.empty((0, self.dim), np.float32)

    def encode_contexts(self, texts: Sequence[str]) -> Vectors:
        return self.encode_questions(texts)


@lru_cache(maxsize=10_000)
def _direction(text: str, dim: int) -> Vectors:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    vector = np.random.default_rng(seed).standard_normal(dim)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@lru_cache
def _turn(number: int, dim: int) -> Vectors:
    """Give the rotation, or reflection, [d, d] that makes the space of a checkpoint."""
    turn, _ = np.linalg.qr(np.random.default_rng(number).standard_normal((dim, dim)))
    return turn.astype(np.float32)


ENCODERS = (HashEncoder(0), HashEncoder(1))
