"""Ranks found keys as facts, and decides which facts answer a lookup. It reads nothing from the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Row

from colmlm.kb.errors import InvalidQuery
from colmlm.kb.facts.records import Review
from colmlm.kb.keys.keysets import STORED, Vectors
from colmlm.kb.lookup.records import Hit, Lookup, Ranking


@dataclass(frozen=True, slots=True)
class Candidate:
    """A key found by a search, with the value of its live fact, or (`version` None) the key of a tombstone."""

    key_id: int
    fact_id: int
    version: int | None
    value: str
    key: bytes
    review: Review = "accepted"
    approximate: bool = False


Rows = Sequence[Candidate | Row[Any]]


def as_queries(queries_BD: npt.NDArray[Any]) -> Vectors:
    """Give queries as float32 rows. Raises `InvalidQuery` where they are not rows of finite numbers."""
    queries = np.asarray(queries_BD, dtype=np.float32)
    if queries.ndim != 2:
        raise InvalidQuery(f"its shape is {queries.shape}, not (batch, width)")
    if not np.isfinite(queries).all():
        raise InvalidQuery("it holds NaN or infinity")
    return queries


def rank_candidates(
    query_D: Vectors, rows: Rows, k: int, added: Mapping[int, float] | None = None
) -> Ranking:
    """Rank the k best facts, each once, by its best key, best first; ties go to the older fact.

    `added` gives for each key id the number that is added to the key's score.
    """
    scores = _scores(query_D[None], [rows])
    if added is not None:
        scores = [score + added[row.key_id] for score, row in zip(scores, rows, strict=True)]
    return _rank_rows(rows, scores, k)


def rank_each(queries_BD: Vectors, rows_B: Sequence[Rows], k: int) -> list[Ranking]:
    """Rank for each query the k best facts among its own rows, as `rank_candidates` does."""
    scores = iter(_scores(queries_BD, rows_B))
    return [_rank_rows(rows, list(islice(scores, len(rows))), k) for rows in rows_B]


def rank_together(found: Sequence[Ranking], queries_BD: Vectors, rows: Rows, k: int) -> list[Ranking]:
    """Merge the facts of these rows into the ranking `found` for each query; give the merged rankings."""
    more = rank_each(queries_BD, [rows] * len(queries_BD), k)
    return [_merge_rankings(one, other, k) for one, other in zip(found, more, strict=True)]


def _merge_rankings(first: Ranking, second: Ranking, k: int) -> Ranking:
    """Rank the facts of two rankings for the same query, each once: the k best, or as many as the first has."""
    hits: dict[int, Hit] = {}
    for hit in sorted((*first.hits, *second.hits), key=lambda hit: (-hit.score, hit.fact_id)):
        hits.setdefault(hit.fact_id, hit)
    tombstones = [one.tombstone for one in (first, second) if one.tombstone is not None]
    nearest = max(tombstones, key=lambda tombstone: tombstone[1], default=None)
    return Ranking(tuple(hits.values())[: max(k, len(first.hits))], nearest)


def _scores(queries_BD: Vectors, rows_B: Sequence[Rows]) -> list[float]:
    """Give the inner products of each query with the keys of its rows, in one list, query after query.

    Each product is computed by itself, so that its rounding does not depend on the other rows.
    """
    keys = np.frombuffer(b"".join(row.key for rows in rows_B for row in rows), dtype=STORED)
    keys_ND = keys.reshape(-1, queries_BD.shape[1]).astype(np.float32)
    found: list[float] = np.vecdot(
        keys_ND, np.repeat(queries_BD, [len(rows) for rows in rows_B], axis=0)
    ).tolist()
    return found


def _rank_rows(rows: Rows, scores: Sequence[float], k: int) -> Ranking:
    order = sorted(range(len(rows)), key=lambda i: (-scores[i], rows[i].fact_id, rows[i].key_id))
    hits: dict[int, Hit] = {}
    tombstone: tuple[int, float] | None = None
    for i in order:
        row = rows[i]
        if row.version is None:
            tombstone = tombstone or (row.fact_id, scores[i])
        elif row.fact_id not in hits:
            hits[row.fact_id] = Hit(
                row.fact_id, row.version, row.value, scores[i], row.key_id, row.review, row.approximate
            )
            if len(hits) == k:
                break
    return Ranking(tuple(hits.values()), tombstone)


def decide_lookup(ranking: Ranking, k: int, threshold: float, seq: int) -> Lookup:
    """Give the k best hits of a ranking at or above the threshold, or none where a tombstone is nearer than all."""
    hits, tombstone = ranking.hits, ranking.tombstone
    runner_up = max((hit.score for hit in hits), default=None)
    abstains = (
        tombstone is not None
        and tombstone[1] >= threshold
        and (runner_up is None or tombstone[1] > runner_up)
    )
    return Lookup(
        hits=() if abstains else tuple(hit for hit in hits[:k] if hit.score >= threshold),
        runner_up=runner_up,
        threshold=threshold,
        seq=seq,
        abstained=tombstone[0] if tombstone is not None and abstains else None,
    )


# Contested lookups: which of two facts that contradict each other answers, where both are about as near to a
# query.
#
# Facts compete where one yields to the other (the view `fact_yield`), both reach the threshold, and the score
# of neither is more than 0.01 below that of the best of them.

CLOSE = 0.01
SPARE = 8  # hits that are compared beyond those that are given

Yields = Mapping[int, Collection[int]]  # by fact, those that are to answer in its place


def settle_ranking(ranking: Ranking, yields: Yields, threshold: float, k: int) -> Ranking:
    """Reorder hits up to place k: of facts with about equal scores, one comes before those that yield to it."""
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
