"""Computes the figures of a gate: the recall of an index, the answers to questions, and tombstones that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colmlm.kb.keys.keysets import Vectors
from colmlm.kb.lookup.candidates import CandidateKeys
from colmlm.kb.lookup.fitting import Nearest, fit_lists
from colmlm.kb.lookup.in_process import InProcess
from colmlm.kb.switching.sample import NOT_LIVE, ClassedTexts, Keys

Scores = npt.NDArray[np.float64]

_CHUNK = 128  # queries scored at once, to limit the memory of [queries, keys]
_NOISE = 0.05  # the length of the noise that is added to a stored key, which has length 1
_TIE = 1e-6


def near_keys(keys: Keys, size: int) -> Vectors:
    """Gives up to `size` stored keys with a little noise, as queries where facts have no questions."""
    random = np.random.default_rng(0)
    chosen = random.permutation(len(keys.ids))[:size]
    near = keys.at(chosen)
    noisy = near + _NOISE * _units(random.standard_normal(near.shape))
    return _units(noisy).astype(np.float32)


def _units(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    units: npt.NDArray[Any] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return units


def index_recall(index: CandidateKeys, keys: Keys, queries_BD: Vectors, k: int) -> float:
    """Gives the share of the exact k nearest keys that are among the candidates of a lookup. Ties count as found."""
    k = min(k, len(keys.ids))
    kth_B = _kth_best(keys, queries_BD, k)
    found = 0
    for start in range(0, len(queries_BD), _CHUNK):
        chunk = queries_BD[start : start + _CHUNK]
        _, candidates = index.search(chunk, index.over_fetch(k))  # as many as a lookup scores for k facts
        for query, row, kth in zip(chunk, candidates, kth_B[start : start + _CHUNK], strict=True):
            places = np.searchsorted(keys.ids, row)
            known = (places < len(keys.ids)) & (keys.ids[np.minimum(places, len(keys.ids) - 1)] == row)
            found += min(k, int((keys.at(places[known]) @ query >= kth - _TIE).sum()))
    wanted = k * len(queries_BD)
    return found / wanted if wanted else 0.0


def _kth_best(keys: Keys, queries_BD: Vectors, k: int) -> Vectors:
    """Gives each query's [B] exact k-th best score among all keys."""
    best_BK = np.full((len(queries_BD), k), -np.inf, np.float32)
    for _, vectors in keys.blocks():
        for start in range(0, len(queries_BD), _CHUNK):
            rows = slice(start, start + _CHUNK)
            scores = np.concatenate([best_BK[rows], queries_BD[rows] @ vectors.T], axis=1)
            best_BK[rows] = np.partition(scores, -k, axis=1)[:, -k:]
    kth_B: Vectors = best_BK.min(axis=1, initial=np.inf)
    return kth_B


def read_more(candidates: CandidateKeys, keys: Keys, queries_BD: Vectors, goal: float) -> None:
    """Lets lookups read more lists, and score more candidates, where they find too few of these queries' nearest keys.

    An exact index has no lists, and is left as it is.
    """
    if not isinstance(candidates, InProcess) or not candidates.index.lists:
        return
    index, nearest = candidates.index, Nearest(queries_BD)
    for block, vectors in keys.blocks():
        nearest.see(keys.ids[block], vectors)
    if nearest.recall(index) >= goal:
        return
    lists, spare = index.lists_read, index.spare
    fit_lists(index, nearest, goal)
    index.lists_read, index.spare = max(lists, index.lists_read), max(spare, index.spare)
    candidates.recall = nearest.recall(index)


def tombstones_passed_over(index: CandidateKeys, keys: Keys) -> int:
    """Counts the tombstones that a query with their own key does not find first. Ties with a live fact are allowed."""
    graves = np.flatnonzero(keys.class_N == NOT_LIVE)
    passed_over = 0
    for start in range(0, len(graves), _CHUNK):
        chunk = keys.at(graves[start : start + _CHUNK])
        _, candidates = index.search(chunk, 4 + 16)
        for query, row in zip(chunk, candidates, strict=True):
            near = np.flatnonzero(np.isin(keys.ids, row))
            scores, dead = keys.at(near) @ query, keys.class_N[near] == NOT_LIVE
            passed_over += bool(not dead.any() or scores[dead].max() < scores.max() - _TIE)
    return passed_over


@dataclass(frozen=True, slots=True)
class Answers:
    """For each question, the best score of a right key and of a wrong one, and the rank of the first right one."""

    genuine: Scores
    impostor: Scores
    rank: npt.NDArray[np.int64]

    @property
    def recall_at_1(self) -> float:
        return float(np.mean(self.rank == 1))

    @property
    def mrr(self) -> float:
        return float(np.mean(1 / self.rank))


def ask(queries_BD: Vectors, asked: ClassedTexts, keys: Keys) -> Answers:
    """Scores queries against live keys. Those of facts with the value asked for are right; ties count as wrong."""
    genuine, impostor = (np.full(len(queries_BD), -np.inf) for _ in range(2))
    for rows, right_BN, scores_BN in _scored(queries_BD, asked, keys):
        for best, side_BN in ((genuine[rows], right_BN), (impostor[rows], ~right_BN)):
            np.maximum(best, scores_BN.max(axis=1, where=side_BN, initial=-np.inf), out=best)
    rank = np.ones(len(queries_BD), dtype=np.int64)
    for rows, right_BN, scores_BN in _scored(queries_BD, asked, keys):
        rank[rows] += (~right_BN & (scores_BN >= genuine[rows, None])).sum(axis=1)
    return Answers(genuine, impostor, rank)


def _scored(
    queries_BD: Vectors, asked: ClassedTexts, keys: Keys
) -> Iterator[tuple[slice, npt.NDArray[np.bool_], Scores]]:
    """Gives the scores of some queries with some live keys at a time, which queries they are, and what is right."""
    for class_N, vectors in keys.live_blocks():
        for start in range(0, len(queries_BD), _CHUNK):
            rows = slice(start, start + _CHUNK)
            right_BN = asked.class_B[rows, None] == class_N[None, :]
            yield rows, right_BN, (queries_BD[rows] @ vectors.T).astype(np.float64)
