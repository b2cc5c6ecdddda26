"""History: what the knowledge base answered as of a change of its log.

Values come from `fact_version`, where "true at change n" is a range test; the keyset that was active, its threshold and
its keys are those of then (`kb.keyset_then`). An index holds what is kept now, so the keys of all that was live then
are read from the database and compared exactly, a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from kb import audit, keysets
from kb.errors import InvalidQuery, NoSuchChange, PastTooLarge
from kb.keyset_then import KeysetThen, keyset_then
from kb.keysets import Vectors
from kb.lookup import Candidate, Ranking, as_queries, check_options, decide, rank
from kb.records import Lookup

if TYPE_CHECKING:
    from kb.service import KnowledgeBase

CHUNK = 20_000
FETCHED_AT_ONCE = (
    500  # rows: the driver makes them all in one go, and nothing else runs in the process meanwhile
)
QUERIES_AT_ONCE = 64  # with a chunk of keys, so that the scores in memory are few whatever is asked

# Keys of then, of facts that were live at :seq, or tombstones then: last ended, up to then, by a change that abstains.
# The log still knows a tombstone that a later restore removed.
_KEYS = text("""
WITH abstaining AS (
    SELECT v.fact_id FROM change c JOIN fact_version v ON v.to_seq = c.seq
    WHERE c.seq <= :seq AND c.payload @> '{"abstain": true}' AND NOT EXISTS (
        SELECT FROM fact_version w WHERE w.fact_id = v.fact_id AND w.version > v.version AND w.from_seq <= :seq)
)
SELECT k.id AS key_id, k.fact_id, v.version, coalesce(v.value, '') AS value, k.key
FROM fact_key k
JOIN fact f ON f.id = k.fact_id
LEFT JOIN fact_version v ON v.fact_id = k.fact_id AND v.from_seq <= :seq AND (v.to_seq IS NULL OR v.to_seq > :seq)
WHERE k.keyset_id = :keyset_id AND k.id < :end AND k.id NOT IN (SELECT unnest(CAST(:later AS bigint[])))
  AND f.erased_seq IS NULL
  AND (v.fact_id IS NOT NULL OR k.fact_id IN (SELECT fact_id FROM abstaining))
ORDER BY k.fact_id, k.id
""")

# Of the facts that were live at :seq, those that can't be found: erased since, or without a key of then.
_LOST = text("""
SELECT count(*) FILTER (WHERE f.erased_seq IS NOT NULL) AS redacted,
       count(*) FILTER (WHERE f.erased_seq IS NULL AND NOT EXISTS (
           SELECT FROM fact_key k WHERE k.keyset_id = :keyset_id AND k.fact_id = f.id AND k.id < :end
             AND k.id NOT IN (SELECT unnest(CAST(:later AS bigint[]))))) AS unkeyed
FROM fact f JOIN fact_version v ON v.fact_id = f.id
WHERE v.from_seq <= :seq AND (v.to_seq IS NULL OR v.to_seq > :seq)
""")


@dataclass(frozen=True, slots=True)
class AsOfLookup(Lookup):
    """What a query would have found as of change `seq`.

    `redacted` facts were live then and are erased now; `unkeyed` ones were live then without a key that is still there:
    they were not keyed yet, or lost it since, as a later ingest changed the text before them. Any of these may be
    missing from the hits; all else is as it was.
    """

    redacted: int = 0
    unkeyed: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """Lookups in the past of a knowledge base."""

    kb: KnowledgeBase

    def lookup(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        as_of: int,
        k: int = 1,
        threshold: float | None = None,
    ) -> list[AsOfLookup]:
        """The k best facts of those that were live at change `as_of`, with the values they had then.

        Each call reads every key of the keyset that was active; the threshold is the one it had, unless given.
        Raises `NoSuchChange`, `PastTooLarge`, and `NotAnsweredThen` where that keyset is of another checkpoint, or its
        keys are gone.
        """
        check_options(k, threshold)
        queries = as_queries(queries_BD)
        with self.kb.sessions() as session:
            session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            require_change(session, as_of)
            then = keyset_then(session, checkpoint_id, as_of)
            if queries.shape[1] != then.keyset.dim:
                raise InvalidQuery(f"it has {queries.shape[1]} numbers, the keys have {then.keyset.dim}")
            if len(queries) * then.keyset.num_keys > (limit := self.kb.settings.as_of_max_scores):
                raise PastTooLarge(len(queries), then.keyset.num_keys, limit)
            lost = session.execute(_LOST, _of(then, as_of)).one()
            rankings = _rankings(session, then, queries, as_of, k)
        least = then.threshold if threshold is None else threshold
        found = (decide(ranking, k, least, as_of) for ranking in rankings)
        return [
            AsOfLookup(**_fields(lookup), redacted=lost.redacted, unkeyed=lost.unkeyed) for lookup in found
        ]


@dataclass(frozen=True, slots=True)
class AsOf:
    """The knowledge base as it stood at change `seq`, as a decoder looks facts up in it."""

    history: History
    seq: int

    def lookup(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
    ) -> list[AsOfLookup]:
        """As `KnowledgeBase.lookup`, in the past. Raises `InvalidQuery` where `min_seq` lies after it."""
        if min_seq is not None and min_seq > self.seq:
            raise InvalidQuery(f"change {min_seq} had not been made as of change {self.seq}")
        return self.history.lookup(
            queries_BD, checkpoint_id=checkpoint_id, as_of=self.seq, k=k, threshold=threshold
        )


def kb_as_of(kb: KnowledgeBase, seq: int) -> AsOf:
    """What stands in for the knowledge base in a decoder that is to answer as of change `seq`."""
    with kb.sessions() as session:
        require_change(session, seq)
    return AsOf(History(kb), seq)


def require_change(session: Session, seq: int) -> None:
    """Raise `NoSuchChange` unless the log has change `seq`. 0 stands for the time before the first."""
    head = audit.head_seq(session)
    if not 0 <= seq <= head:
        raise NoSuchChange(seq, head)


def _of(then: KeysetThen, seq: int) -> dict[str, Any]:
    """What the statements name."""
    return {"keyset_id": then.keyset.keyset_id, "end": then.end, "later": list(then.later), "seq": seq}


def _rankings(session: Session, then: KeysetThen, queries_BD: Vectors, seq: int, k: int) -> list[Ranking]:
    candidates: list[list[Candidate]] = [[] for _ in queries_BD]
    for rows in _chunks(session, then, seq):
        keys_ND = keysets.decode([row.key for row in rows], then.keyset.dim)
        fact_ids = np.array([row.fact_id for row in rows])
        is_live = np.array([row.version is not None for row in rows])
        for first in range(0, len(queries_BD), QUERIES_AT_ONCE):
            scores_NB = keys_ND @ queries_BD[first : first + QUERIES_AT_ONCE].T
            for b, scores_N in enumerate(scores_NB.T, start=first):
                near = _nearest(scores_N, fact_ids, is_live, k)
                merged = candidates[b] + [_candidate(rows[n]) for n in near.tolist()]
                candidates[b] = _needed(merged, queries_BD[b], k)
    return [rank(query_D, found, k) for query_D, found in zip(queries_BD, candidates, strict=True)]


def _chunks(session: Session, then: KeysetThen, seq: int) -> Iterator[list[Row[Any]]]:
    """The keys of then, so many at a time."""
    rows: list[Row[Any]] = []
    fetched = session.execute(_KEYS.execution_options(yield_per=FETCHED_AT_ONCE), _of(then, seq))
    for few in fetched.partitions():
        rows += few
        if len(rows) >= CHUNK:
            yield rows
            rows = []
    if rows:
        yield rows


def _nearest(
    scores_N: Vectors, fact_ids: npt.NDArray[Any], is_live: npt.NDArray[Any], k: int
) -> npt.NDArray[Any]:
    """Where the keys are that decide for one query: those of the k best live facts, and the best tombstone's."""
    live = np.flatnonzero(is_live)
    chosen = [np.empty(0, dtype=np.intp)]
    if len(live):
        first_of_fact = np.flatnonzero(np.diff(fact_ids[live], prepend=-1))
        best_F = np.maximum.reduceat(scores_N[live], first_of_fact)
        least = np.partition(best_F, -k)[-k] if k < len(best_F) else -np.inf
        chosen.append(live[scores_N[live] >= least])
    if len(dead := np.flatnonzero(~is_live)):
        chosen.append(dead[[np.argmax(scores_N[dead])]])
    return np.concatenate(chosen)


def _needed(candidates: list[Candidate], query_D: Vectors, k: int) -> list[Candidate]:
    """The candidates that the answer can still depend on, so that what is held does not grow with the base."""
    ranking = rank(query_D, candidates, k)
    tombstone = ranking.tombstone
    wanted = {hit.key_id for hit in ranking.hits}
    return [
        c
        for c in candidates
        if c.key_id in wanted or (c.version is None and tombstone and c.fact_id == tombstone[0])
    ]


def _candidate(row: Row[Any]) -> Candidate:
    return Candidate(row.key_id, row.fact_id, row.version, row.value, row.key)


def _fields(lookup: Lookup) -> dict[str, Any]:
    return {name: getattr(lookup, name) for name in Lookup.__dataclass_fields__}
