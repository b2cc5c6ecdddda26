"""The choice of a flat set of spans out of candidates that overlap."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

Span = tuple[int, int]


def heaviest(spans: Sequence[Span], weights: Sequence[float]) -> list[int]:
    """Gives the indices of the spans without overlap whose weights add up to the most, in order of the text.

    Spans of no weight are never chosen; of equal sums the one with the earlier spans is.
    """
    order = sorted((i for i in range(len(spans)) if weights[i] > 0), key=lambda i: (spans[i][1], spans[i][0]))
    ends = [spans[i][1] for i in order]
    best = [0.0]  # best[n]: the most that the first n spans, by their ends, can weigh
    before = []
    for n, i in enumerate(order):
        at = bisect_right(ends, spans[i][0], hi=n)
        before.append(at)
        best.append(max(best[n], best[at] + weights[i]))
    chosen: list[int] = []
    n = len(order)
    while n:
        if best[n] == best[n - 1]:
            n -= 1
        else:
            chosen.append(order[n - 1])
            n = before[n - 1]
    return chosen[::-1]
