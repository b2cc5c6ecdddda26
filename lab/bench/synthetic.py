"""Makes any number of synthetic keys, queries and facts, from the same random draws on every machine for a seed.

The last bits of keys and queries depend on the processor, as those of any matrix product do.

Keys lie near a curved surface of few dimensions, as the states of a network do. Uniformly random vectors of hundreds of
dimensions are all about equally far from each other, so that no index could find any structure.
Fact `i` belongs to document ``i // FACTS_PER_DOCUMENT``, and key `i` is its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan

FACTS_PER_DOCUMENT = 20
CHUNK = 50_000  # keys made at a time, so that memory holds one chunk beside what is kept of it
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
    """Makes unit vectors [num, dim] near a surface of `intrinsic_dim` dimensions.

    The first n of a larger set equal the set of n, up to the rounding of a matrix product.
    """
    keys = np.empty((num, dim), np.float32)
    for start, rows in key_chunks(num, dim, seed=seed, intrinsic_dim=intrinsic_dim):
        keys[start : start + len(rows)] = rows
    return keys


def key_chunks(
    num: int, dim: int, *, seed: int, intrinsic_dim: int = 32, first: int = 0
) -> Iterator[tuple[int, Vectors]]:
    """Makes the same keys a chunk at a time, each with the position of its first key.

    It begins with the chunk that holds position `first`.
    """
    surface = np.random.default_rng([seed, 0])
    hidden = 4 * intrinsic_dim
    bend = surface.standard_normal((intrinsic_dim, hidden), np.float32) / np.sqrt(
        intrinsic_dim, dtype=np.float32
    )
    spread = surface.standard_normal((hidden, dim), np.float32)
    for start in range(first // CHUNK * CHUNK, num, CHUNK):
        chunk, size = start // CHUNK + 1, min(CHUNK, num - start)
        latent = np.random.default_rng([seed, chunk, 0]).standard_normal((size, intrinsic_dim), np.float32)
        rows = np.tanh(latent @ bend) @ spread
        normalize(rows)
        off = np.random.default_rng([seed, chunk, 1]).standard_normal(rows.shape, np.float32)
        off *= np.float32(OFF_SURFACE / np.sqrt(dim))
        rows += off
        normalize(rows)
        yield start, rows


def queries_near(keys: Vectors, num: int, *, seed: int, noise: float = 0.8) -> Vectors:
    """Makes unit vectors [num, dim], each a sampled key that was moved by `noise` of its length.

    Half of the way is towards another key, so that it stays near the surface. The sampled key need not be the nearest
    any more; `exact_top1` finds that.
    """
    return queries_among(len(keys), keys.__getitem__, num, seed=seed, noise=noise)


def queries_among(
    num_keys: int,
    keys_at: Callable[[Positions], Vectors],
    num: int,
    *,
    seed: int,
    noise: float = 0.8,
) -> Vectors:
    """Makes the same queries among keys that need not be in memory: `keys_at` gives those at some positions."""
    random = np.random.default_rng([seed, num_keys])
    sampled = random.integers(num_keys, size=num)
    others = (sampled + random.integers(1, num_keys, size=num)) % num_keys
    near, towards = np.split(keys_at(np.concatenate([sampled, others])), 2)
    towards = towards - near
    normalize(towards)
    anywhere = random.standard_normal(near.shape, np.float32)
    normalize(anywhere)
    towards += anywhere
    normalize(towards)
    queries: Vectors = near + np.float32(noise) * towards
    normalize(queries)
    return queries


def exact_top1(keys: Vectors, queries: Vectors, *, block: int = CHUNK) -> Positions:
    """Gives the position of the key with the largest inner product for each query, by exhaustive search in blocks."""
    starts = range(0, len(keys), block)
    return exact_top1_of(((start, keys[start : start + block]) for start in starts), queries)


def exact_top1_of(chunks: Iterable[tuple[int, Vectors]], queries: Vectors) -> Positions:
    """Gives the same of keys that come in chunks, each with the position of its first key."""
    best = np.full(len(queries), -np.inf, np.float32)
    found = np.zeros(len(queries), np.int64)
    rows = np.arange(len(queries))
    for start, keys in chunks:
        scores = queries @ keys.T
        top = scores.argmax(axis=1)
        score = scores[rows, top]
        better = score > best
        best[better], found[better] = score[better], start + top[better]
    return found


def normalize(vectors: Vectors) -> None:
    """Scales each row to length 1, in place."""
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)


def fact_text(fact: int) -> FactText:
    """Gives the texts of fact number `fact`. No value is part of another, so a search for one finds only that one."""
    thing, ordinal = divmod(fact, FACTS_PER_DOCUMENT)
    quality = f"{_QUALITIES[ordinal % len(_QUALITIES)]} {ordinal // len(_QUALITIES) + 1}"
    value = f"value {fact:09d}"
    return FactText(
        value, f"What is {quality} of thing {thing}?", f"Of thing {thing}, {quality} is {value}. "
    )


def documents(num_facts: int) -> Iterator[AnnotatedDocument]:
    """Yields documents of 20 facts each, in the order of their facts; the last one holds the rest."""
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
