"""Contested lookups: which of two facts that contradict each other answers, where both are about as near to a query.

Facts compete where one yields to the other (the view `fact_yield`), both reach the threshold, and the score of
neither is more than 0.01 below that of the best of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from colmlm.kb.lookup.records import Ranking

CLOSE = 0.01
SPARE = 8  # hits that are compared beyond those that are given

Yields = Mapping[int, Collection[int]]  # by fact, those that are to answer in its place


def settled(ranking: Ranking, yields: Yields, threshold: float, k: int) -> Ranking:
    """Puts the fact first, of those that compete for one of the first k places, that the others yield to."""
    if not yields:
        return ranking
    hits = list(ranking.hits)
    for place in range(min(k, len(hits))):
        best = place
        for rival in range(place + 1, len(hits)):
            if hits[place].score - hits[rival].score > CLOSE or hits[rival].score < threshold:
                break
            if hits[rival].fact_id in yields.get(hits[best].fact_id, ()):
                best = rival
        hits.insert(place, hits.pop(best))
    return replace(ranking, hits=tuple(hits))
