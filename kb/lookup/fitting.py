"""Fits an index to its keys by measuring: which codes tell them apart, how many lists are read and candidates scored.

The measure is the share of queries whose exact nearest key is among the candidates that a lookup scores. The queries
are keys moved a long way, half of it towards another key: as near to keys as questions are, though questions that
people asked needed up to twice as many lists. So the gate measures the same with questions, and may have more read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from colmlm.kb.lookup.index import Ids, KeyIndex, Vectors
from colmlm.kb.lookup.specs import FLAT_SPEC, bits_spec, default_spec, paper_spec

MEASURED = 500  # queries
TIE = 1e-6  # keys whose scores differ by no more are equally near
# By how much of its length a key is moved to be a query. The first gives queries as near to keys as questions are.
# Codes are compared by queries further off, since those tell poor codes from good ones among few keys as well.
_MOVED, _MOVED_FAR = 0.8, 1.0
_COMPARED = 10_000  # keys that codes are compared on
# The share of nearest keys from which codes of a bit for each number are taken. At width 576 it was 0.90 to 0.98, and
# above 0.99 for queries moved less among 200,000; at width 128 it was 0.6, among any number of keys.
_TOLD_APART = 0.8
_SLACK = 0.005  # below what reading all lists finds, where the codes and not the lists are the limit
_SPARE = (8, 18, 38, 78)  # candidates to spare that are tried where those of the index are too few
_KEYS_AT_ONCE = 20_000  # that are compared with all queries: products of few rows or columns take longer


class Nearest:
    """The exact nearest keys of some queries among keys that are shown to it batch by batch. Ties are all kept."""

    def __init__(self, queries: Vectors) -> None:
        self.queries = queries
        self._best = np.full(len(queries), -np.inf, np.float32)
        self._seen: list[tuple[Ids, Ids, Vectors]] = []

    def see(self, ids: Ids, keys: Vectors) -> None:
        """Compare the queries with these keys [n, d] of these ids [n]."""
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            scores = self.queries @ keys[start : start + _KEYS_AT_ONCE].T
            most = scores.max(axis=1, initial=-np.inf)
            self._best = np.maximum(self._best, most)
            near = np.flatnonzero(most >= self._best - TIE)  # few, once most keys were seen
            scores = scores[near]
            rows, columns = np.nonzero(scores >= self._best[near, None] - TIE)
            self._seen.append((near[rows], ids[start + columns], scores[rows, columns]))

    def recall(self, index: KeyIndex) -> float:
        """Give the share of queries that have one of their nearest keys among the candidates of a lookup."""
        ranks = self.ranks(index, candidates := index.over_fetch(1))
        return float((ranks < candidates).mean()) if len(ranks) else 1.0

    def ranks(self, index: KeyIndex, candidates: int) -> Ids:
        """Give the place of each query's [B] nearest key among so many candidates; their number where it is none."""
        places = np.full(len(self.queries), candidates)
        _, found = index.search(self.queries, candidates)
        for rows, ids, scores in self._seen:
            near = scores >= self._best[rows] - TIE
            rows = rows[near]
            is_there = found[rows] == ids[near, None]
            np.minimum.at(places, rows, np.where(is_there.any(axis=1), is_there.argmax(axis=1), candidates))
        return places


def parted(sample: Vectors, spare: int) -> tuple[Vectors, Vectors]:
    """Parts a sample of keys [n, d] into those that become queries and those that an index is trained on.

    Keys that it was trained on lie nearer to its centroids than others, which made 74 lists look like enough where 85
    were. Where only a few keys can be spared, they are in both parts.
    """
    mixed = sample[np.random.default_rng(0).permutation(len(sample))]
    held_out = mixed[:MEASURED]
    return held_out, mixed[len(held_out) :] if spare >= len(held_out) else sample


def moved(keys: Vectors, by: float = _MOVED) -> Vectors:
    """Give these keys [n, d] as queries, each moved half towards another of them and half anywhere."""
    random = np.random.default_rng(0)
    others = (np.arange(len(keys)) + random.integers(1, max(2, len(keys)), size=len(keys))) % max(
        1, len(keys)
    )
    way = _units(keys[others] - keys) + _units(random.standard_normal(keys.shape))
    return _units(keys + by * _units(way)).astype(np.float32)


def _units(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    units: npt.NDArray[np.floating] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return units


def fitting_spec(sample: Vectors, num_keys: int) -> str:
    """Give the spec for so many keys of which this is a sample [n, d], by what each kind of code finds among them."""
    dim = sample.shape[1]
    if default_spec(num_keys, dim) == FLAT_SPEC:
        return FLAT_SPEC
    keys = sample[np.random.default_rng(0).permutation(len(sample))[:_COMPARED]]
    index = KeyIndex(dim, f"RR{dim},IVF{max(1, len(keys) // 256)},RaBitQ")
    index.lists_read = index.lists
    ids, nearest = np.arange(len(keys)), Nearest(moved(keys[:MEASURED], _MOVED_FAR))
    index.add(ids, keys)
    nearest.see(ids, keys)
    fits = nearest.recall(index) >= _TOLD_APART
    return bits_spec(num_keys, dim) if fits else paper_spec(num_keys, dim)


def fit_lists(index: KeyIndex, nearest: Nearest, goal: float) -> float:
    """Let a search read the fewest lists with which it surely finds this share of nearest keys; give what it finds.

    Where the codes are the limit, more candidates are scored. Where those do not help either, it reads as many lists as
    find nearly what all would.
    """
    steps = sorted({min(index.lists, round(4 * 1.2**step)) for step in range(64)})
    wanted = goal + math.sqrt(goal * (1 - goal) / max(1, len(nearest.queries)))
    index.lists_read = index.lists
    at_most = _fit_spare(index, nearest, wanted + _SLACK)
    return _read_least(index, nearest, steps, min(wanted, at_most - _SLACK))


def _fit_spare(index: KeyIndex, nearest: Nearest, wanted: float) -> float:
    """Let a lookup score the fewest candidates with which it finds what is wanted, or nearly what most would find.

    Gives what it then finds by the lists that are read.
    """
    choice = [index.spare, *(spare for spare in _SPARE if spare > index.spare)]
    ranks = nearest.ranks(index, 2 + choice[-1])
    found = [float((ranks < 2 + spare).mean()) if len(ranks) else 1.0 for spare in choice]
    enough = wanted if found[-1] >= wanted else found[-1] - _SLACK
    index.spare, at_most = next(one for one in zip(choice, found, strict=True) if one[1] >= enough)
    return at_most


def _read_least(index: KeyIndex, nearest: Nearest, steps: Sequence[int], wanted: float) -> float:
    """Let a search read the least number of lists of these that finds what is wanted, else all of them."""

    def recall(step: int) -> float:
        index.lists_read = steps[step]
        return nearest.recall(index)

    return recall(bisect_left(range(len(steps) - 1), wanted, key=recall))
