"""How an index is fitted to keys: by what its codes and its lists are measured to find."""

from __future__ import annotations

import numpy as np
import pytest

from colmlm.kb.keys.records import RECALL
from colmlm.kb.lookup.in_process import NearestKeys, fit_lists, fitting_spec, perturb_keys, split_sample
from colmlm.kb.lookup.index import KeyIndex
from colmlm.lab.bench.synthetic import exact_top1, synthetic_keys

KEYS = synthetic_keys(6_000, 64, seed=0)
WIDE = synthetic_keys(4_000, 576, seed=0)


def filled(spec: str) -> tuple[KeyIndex, NearestKeys]:
    index, ids, nearest = KeyIndex(64, spec), np.arange(len(KEYS)) + 7, NearestKeys(perturb_keys(KEYS[:300]))
    index.add(ids, KEYS)
    for start in range(0, len(KEYS), 1_000):
        nearest.compare_with(ids[start : start + 1_000], KEYS[start : start + 1_000])
    return index, nearest


def test_the_fewest_lists_are_read_that_find_what_is_wanted() -> None:
    index, nearest = filled("IVF128,Flat")
    recall = fit_lists(index, nearest, RECALL)
    assert recall >= RECALL and 4 < index.lists_read < index.lists
    assert recall == nearest.recall(index)
    index.lists_read //= 2
    assert nearest.recall(index) < RECALL


def test_recall_is_that_of_an_exhaustive_search() -> None:
    index, nearest = filled("IVF128,Flat")
    index.lists_read = 16
    found = index.search(nearest.queries, index.over_fetch(1))[1]
    right = exact_top1(KEYS, nearest.queries) + 7
    assert nearest.recall(index) == pytest.approx((found == right[:, None]).any(axis=1).mean(), abs=1e-9)


def test_where_codes_are_the_limit_no_more_lists_are_read_than_help() -> None:
    index, nearest = filled("IVF128,PQ1")
    recall = fit_lists(index, nearest, RECALL)
    assert recall < RECALL
    index.lists_read = index.lists
    assert recall >= nearest.recall(index) - 0.01


def test_where_codes_are_the_limit_more_candidates_are_scored() -> None:
    index, nearest = filled("RR64,IVF32,RaBitQ")  # too narrow for a bit for each number
    index.lists_read, before = index.lists, index.spare
    assert nearest.recall(index) < 0.7
    recall = fit_lists(index, nearest, 0.8)
    assert recall >= 0.8 and index.spare > before and index.over_fetch(4) == 8 + index.spare
    index.spare = before
    assert nearest.recall(index) < 0.7


def test_ranks_are_places_among_the_candidates() -> None:
    index, nearest = filled("IVF128,Flat")
    index.lists_read = index.lists
    assert (nearest.ranks(index, 5) == 0).all()  # nothing is estimated, so the nearest comes first
    index.remove(nearest.ranks(index, 1) + exact_top1(KEYS, nearest.queries) + 7)
    assert (nearest.ranks(index, 5) == 5).all()


def test_queries_are_keys_that_the_index_is_not_trained_on_where_enough_are_left() -> None:
    held_out, trained_on = split_sample(KEYS, spare=len(KEYS) - 1_000)
    both = np.concatenate([held_out, trained_on])
    assert len(held_out) == 500 and len(np.unique(both, axis=0)) == len(KEYS) == len(both)
    assert len(split_sample(KEYS, spare=499)[1]) == len(KEYS)


def test_keys_that_are_equally_near_count_alike() -> None:
    index, nearest, apart = KeyIndex(64), NearestKeys(KEYS[:200]), NearestKeys(KEYS[:200])
    index.add(range(200, 400), KEYS[:200])  # of each pair the index holds one
    nearest.compare_with(np.arange(400), np.concatenate([KEYS[:200], KEYS[:200]]))
    for first in (0, 200):
        apart.compare_with(np.arange(first, first + 200), KEYS[:200])
    assert nearest.recall(index) == apart.recall(index) == 1


def test_wide_keys_get_a_bit_for_each_number_and_narrow_ones_do_not() -> None:
    assert fitting_spec(WIDE, 200_000) == "RR576,IVF1024,RaBitQ"
    assert fitting_spec(KEYS, 200_000) == "OPQ16_64,IVF1024,PQ16"
    assert fitting_spec(WIDE, 50_000) == "IDMap2,Flat"
