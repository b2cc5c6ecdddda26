"""Of candidates that overlap, the flat set of the greatest weight is chosen."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from colmlm.lab.marks import Span, heaviest_spans

candidates = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 5), st.integers(0, 8)),
    max_size=9,
    unique_by=lambda one: one[:2],
)


def is_flat(spans: list[Span]) -> bool:
    return all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))


@given(candidates)
def test_no_other_flat_set_weighs_more(drawn: list[tuple[int, int, int]]) -> None:
    spans = [(start, start + length) for start, length, _ in drawn]
    weights = [float(weight) for *_, weight in drawn]
    chosen = heaviest_spans(spans, weights)
    found = [spans[i] for i in chosen]
    assert found == sorted(found) and is_flat(found) and all(weights[i] > 0 for i in chosen)
    subsets = (s for size in range(len(spans) + 1) for s in combinations(range(len(spans)), size))
    best = max(sum(weights[i] for i in s) for s in subsets if is_flat([spans[i] for i in s]))
    assert sum(weights[i] for i in chosen) == best


def test_two_likely_parts_beat_a_less_likely_whole() -> None:
    spans = [(0, 7), (9, 14), (0, 14)]
    assert heaviest_spans(spans, [0.05, 0.05, 0.06]) == [0, 1]
    assert heaviest_spans(spans, [0.05, 0.05, 0.2]) == [2]
    assert heaviest_spans([], []) == []
