"""Contenders: what of a search is decided on first."""

from __future__ import annotations

import numpy as np

from colmlm.kb.lookup.searcher import contenders


def _of(scores: list[list[float]], ids: list[list[int]], k: int) -> list[list[int]]:
    found: list[list[int]] = contenders(np.array(scores, np.float32), np.array(ids), k).tolist()
    return found


def test_those_that_k_others_beat_are_left_out_and_ties_are_not():
    scores, ids = [[0.9, 0.9, 0.8, 0.7], [0.9, 0.5, 0.5, 0.1]], [[7, 3, 5, 1], [2, 4, 6, 8]]
    assert _of(scores, ids, 1) == [[7, 3, -1, -1], [2, -1, -1, -1]]
    assert _of(scores, ids, 2) == [[7, 3, -1, -1], [2, 4, 6, -1]]
    assert _of(scores, ids, 3) == [[7, 3, 5, -1], [2, 4, 6, -1]]


def test_scores_that_differ_by_rounding_are_ties():
    assert _of([[0.9, 0.9 - 1e-6, 0.899]], [[1, 2, 3]], 1) == [[1, 2, -1]]


def test_fewer_than_k_are_all_of_them():
    assert _of([[0.9, 0.2, -np.inf]], [[1, 2, -1]], 3) == [[1, 2, -1]]
    assert _of([[0.9, -np.inf, -np.inf]], [[1, -1, -1]], 2) == [[1, -1, -1]]
