"""Makes any number of synthetic keys, queries and facts, from the same random draws on every machine for a seed.

The last bits of keys and queries depend on the processor, as those of any matrix product do.

Keys lie near a curved surface of few dimensions, as the states of a network do. Uniformly random vectors of hundreds of
dimensions are all about equally far from each other, so that no index could find any structure.
Fact `i` belongs to document ``i // FACTS_PER_DOCUMENT``, and key `i` is its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan

FACTS_PER_DOCUMENT = 20
CHUNK = 50_000  # keys made at a time, so that memory holds the result and one chunk, not a second copy
OFF_SURFACE = 0.1  # how far a key lies from the surface, as a share of its length

_QUALITIES = ("colour", "weight", "maker", "owner", "origin")


@dataclass(frozen=True, slots=True)
class FactText:
    """The texts stored with a key: the value, a question that asks for it, and the passage that contains it."""

    value: str
    question: str
    source: str


def synthetic_keys(num: int, dim: int, *, seed: int, intrinsic_dim: int = 32) -> npt.NDArray[np.float32]:
    """Makes unit vectors [num, dim] near a surface of `intrinsic_dim` dimensions.

    The first n of a larger set equal the set of n, up to the rounding of a matrix product.
    """
    surface = np.random.default_rng([seed, 0])
    hidden = 4 * intrinsic_dim
    bend = surface.standard_normal((intrinsic_dim, hidden), np.float32) / np.sqrt(
        intrinsic_dim, dtype=np.float32
    )
    spread = surface.standard_normal((hidden, dim), np.float32)
    keys = np.empty((num, dim), np.float32)
    for chunk, start in enumerate(range(0, num, CHUNK), start=1):
        rows = keys[start : start + CHUNK]
        latent = np.random.default_rng([seed, chunk, 0]).standard_normal(
            (len(rows), intrinsic_dim), np.float32
        )
        np.matmul(np.tanh(latent @ bend), spread, out=rows)
        normalize(rows)
        off = np.random.default_rng([seed, chunk, 1]).standard_normal(rows.shape, np.float32)
        rows += off * np.float32(OFF_SURFACE / np.sqrt(dim))
        normalize(rows)
    return keys


def queries_near(
    keys: npt.NDArray[np.float32], num: int, *, seed: int, noise: float = 0.8
) -> npt.NDArray[np.float32]:
    """Makes unit vectors [num, dim], each a sampled key that was moved by `noise` of its length.

    Half of the way is towards another key, so that it stays near the surface. The sampled key need not be the nearest
    any more; `exact_top1` finds that.
    """
    random = np.random.default_rng([seed, len(keys)])
    sampled = random.integers(len(keys), size=num)
    others = (sampled + random.integers(1, len(keys), size=num)) % len(keys)
    near = keys[sampled]
    towards = keys[others] - near
    normalize(towards)
    anywhere = random.standard_normal(near.shape, np.float32)
    normalize(anywhere)
    towards += anywhere
    normalize(towards)
    queries: npt.NDArray[np.float32] = near + np.float32(noise) * towards
    normalize(queries)
    return queries


def exact_top1(
    keys: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], *, block: int = CHUNK
) -> npt.NDArray[np.int64]:
    """Gives the position of the key with the largest inner product for each query, by exhaustive search in blocks."""
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


def normalize(vectors: npt.NDArray[np.float32]) -> None:
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
