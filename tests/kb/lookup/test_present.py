"""The set of ids of an index against a set of Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from colmlm.kb.lookup.index import PresentIds, distinct

# Near each other, at the edges of pages, and far apart.
ids = st.one_of(st.integers(0, 40), st.integers(4_080, 4_110), st.integers(0, 2**62))
sets = st.sets(ids, max_size=20)


def ascending(chosen: set[int]) -> np.ndarray:
    return np.array(sorted(chosen), dtype=np.int64)


@settings(derandomize=True, deadline=None, database=None)
@given(first=sets, edits=st.lists(st.tuples(st.booleans(), sets), max_size=8), asked=sets)
def test_it_holds_what_a_set_holds(
    first: set[int], edits: list[tuple[bool, set[int]]], asked: set[int]
) -> None:
    present, model = PresentIds(np.array(list(first), dtype=np.int64)), set(first)
    for adds, chosen in edits:
        if adds:
            present.add(ascending(chosen - model))
            model |= chosen
        else:
            present.discard(ascending(chosen & model))
            model -= chosen
    assert len(present) == len(model)
    assert present.ascending().tolist() == sorted(model)
    assert present.has(ascending(asked)).tolist() == [one in model for one in sorted(asked)]


def test_an_id_that_comes_twice_counts_once() -> None:
    assert len(PresentIds(np.array([5, 3, 5]))) == 2


@settings(derandomize=True, deadline=None, database=None)
@given(given_ids=st.lists(ids, max_size=40))
def test_ids_are_put_in_order_each_once(given_ids: list[int]) -> None:
    assert distinct(np.array(given_ids, dtype=np.int64)).tolist() == sorted(set(given_ids))
