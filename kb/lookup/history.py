"""History: lookups as of a change of the log, with the answers that the knowledge base gave then.

Values come from `fact_version`, where "true at change n" is a range test; `kb.keys.keyset_then` gives the keyset that
was active, with its threshold and keys of that time. An index holds only current keys, so the keys of all facts that
were live then are read from the database and compared exactly, a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidQuery, refusals
from colmlm.kb.facts.reviews import Review
from colmlm.kb.keys.counting import num_indexed_keys
from colmlm.kb.keys.keyset_then import KeysetThen, keyset_then
from colmlm.kb.keys.keysets import STORED, Vectors
from colmlm.kb.log import audit
from colmlm.kb.lookup.options import FOUND_BY_KEY_THEN, FilteredOptions, Wanted
from colmlm.kb.lookup.ranking import Candidate, as_queries, decide_lookup, rank_candidates
from colmlm.kb.lookup.records import AsOfLookup, Hit, Lookup, Ranking
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.store import require_primary

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store

# The keys stored by :seq of facts that were live then, or tombstones: facts last ended by a change that abstains.
# Tombstones are found by the log, since a later restore removes their rows. A chunk of keys is one row of bytes: making
# an object of each key would keep every other request of the process waiting.
_KEYS = """
WITH abstaining AS (
    SELECT v.fact_id FROM change c JOIN fact_version v ON v.to_seq = c.seq
    WHERE c.seq <= %(seq)s AND c.payload @> '{"abstain": true}' AND NOT EXISTS (
        SELECT FROM fact_version w WHERE w.fact_id = v.fact_id AND w.version > v.version AND w.from_seq <= %(seq)s)
), numbered AS (
    SELECT k.id AS key_id, k.fact_id, k.key, v.fact_id IS NOT NULL AS is_live,
           row_number() OVER (ORDER BY k.fact_id, k.id) - 1 AS n
    FROM fact_key k
    JOIN fact f ON f.id = k.fact_id
    LEFT JOIN fact_version v
        ON v.fact_id = k.fact_id AND v.from_seq <= %(seq)s AND (v.to_seq IS NULL OR v.to_seq > %(seq)s)
    WHERE k.keyset_id = %(keyset_id)s AND k.id < %(end)s AND k.id NOT IN (SELECT unnest(%(later)s::bigint[]))
      AND f.erased_seq IS NULL AND FOUND_BY_KEY_THEN
)
SELECT string_agg(int8send(key_id), '' ORDER BY n), string_agg(int8send(fact_id), '' ORDER BY n),
       string_agg(boolsend(is_live), '' ORDER BY n), string_agg(key, '' ORDER BY n)
FROM numbered GROUP BY n / %(chunk)s ORDER BY n / %(chunk)s
""".replace("FOUND_BY_KEY_THEN", FOUND_BY_KEY_THEN)

_VALUES = text("""
SELECT v.fact_id, v.version, v.value, f.review FROM fact_version v JOIN fact f ON f.id = v.fact_id
WHERE v.fact_id = ANY(:fact_ids) AND v.from_seq <= :seq AND (v.to_seq IS NULL OR v.to_seq > :seq)
""")

_ADOPTED = text("""
SELECT id FROM fact_key WHERE fact_id = ANY(:fact_ids) AND id = ANY(:key_ids) AND kind = 'adopted'
""")

LIVE = 0  # stands for the version of a live fact until the versions of the facts that answer are read

# Counts the facts live at :seq that can't be found: those erased since, and those without a key of that time.
_LOST = text("""
SELECT count(*) FILTER (WHERE f.erased_seq IS NOT NULL) AS redacted,
       count(*) FILTER (WHERE f.erased_seq IS NULL AND NOT EXISTS (
           SELECT FROM fact_key k WHERE k.keyset_id = :keyset_id AND k.fact_id = f.id AND k.id < :end
             AND k.id NOT IN (SELECT unnest(CAST(:later AS bigint[]))))) AS unkeyed
FROM fact f JOIN fact_version v ON v.fact_id = f.id
WHERE v.from_seq <= :seq AND (v.to_seq IS NULL OR v.to_seq > :seq)
""")


@dataclass(frozen=True, slots=True)
class AsOf:
    """The lookups of a decoder in the knowledge base as of change `seq`.

    It compares a bounded number of queries with a bounded number of keys at once, so that the scores fit in memory.
    """

    store: Store
    seq: int
    keys_at_once: int = 20_000
    queries_at_once: int = 64

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[FilteredOptions]
    ) -> list[AsOfLookup]:
        """Find the k best of the facts that were live at change `seq`, with the values they had then.

        Each call reads every key of the keyset that was active; its threshold of that time holds, unless one is given.
        Raises `NoSuchChange`, `PastTooLarge`, `InvalidQuery` where `min_seq` is after `seq`, and `NotAnsweredThen`
        where that keyset is of another checkpoint, or its keys are gone. A standby may still have facts that were
        erased, so it raises `StandbyAsked` there.
        """
        wanted = Wanted.read(options)
        fact_filter = wanted.fact_filter.of_past()
        if wanted.min_seq is not None and wanted.min_seq > self.seq:
            raise InvalidQuery(f"change {wanted.min_seq} had not been made as of change {self.seq}")
        queries = as_queries(queries_BD)
        with self.store.sessions() as session:
            session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            require_primary(session)
            audit.require_change(session, self.seq)
            then = keyset_then(session, checkpoint_id, self.seq)
            if queries.shape[1] != then.keyset.dim:
                raise InvalidQuery(f"it has {queries.shape[1]} numbers, the keys have {then.keyset.dim}")
            num_keys = num_indexed_keys(session, then.keyset.keyset_id)
            if len(queries) * num_keys > (limit := self.store.settings.as_of_max_scores):
                raise refusals.past_too_large(len(queries), num_keys, limit)
            lost = session.execute(_LOST, _of(then, self.seq)).one()
            of = {**_of(then, self.seq), **fact_filter.parameters, "chunk": self.keys_at_once}
            chunks = _chunks(session, then.keyset.dim, of)
            rankings = _with_values(session, self._rankings(chunks, queries, wanted.k), self.seq)
        least = then.threshold if wanted.threshold is None else wanted.threshold
        found = (decide_lookup(ranking, wanted.k, least, self.seq) for ranking in rankings)
        return [
            AsOfLookup(**_fields(lookup), redacted=lost.redacted, unkeyed=lost.unkeyed) for lookup in found
        ]

    def _rankings(self, chunks: Iterable[_Chunk], queries_BD: Vectors, k: int) -> list[Ranking]:
        """Rank the nearest facts of each query, without their values."""
        candidates: list[list[Candidate]] = [[] for _ in queries_BD]
        for chunk in chunks:
            for first in range(0, len(queries_BD), self.queries_at_once):
                scores_BN = queries_BD[first : first + self.queries_at_once] @ chunk.keys_ND.T
                for b, scores_N in enumerate(scores_BN, start=first):
                    candidates[b] = _needed([*candidates[b], *chunk.nearest(scores_N, k)], queries_BD[b], k)
        return [
            rank_candidates(query_D, near, k) for query_D, near in zip(queries_BD, candidates, strict=True)
        ]


def _of(then: KeysetThen, seq: int) -> dict[str, Any]:
    """Give the parameters of the statements."""
    return {"keyset_id": then.keyset.keyset_id, "end": then.end, "later": list(then.later), "seq": seq}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some keys of that time, ordered by fact. `live` are the positions of the keys of live facts, `dead` the others.

    `first_of_fact` gives the positions in `live` at which each fact begins.
    """

    key_ids: npt.NDArray[np.int64]
    fact_ids: npt.NDArray[np.int64]
    keys_ND: Vectors
    stored: bytes
    live: npt.NDArray[np.intp]
    dead: npt.NDArray[np.intp]
    first_of_fact: npt.NDArray[np.intp]

    @classmethod
    def of(cls, dim: int, key_ids: bytes, fact_ids: bytes, is_live: bytes, keys: bytes) -> _Chunk:
        """Read a chunk from a row of the statement, with keys of width `dim`."""
        facts, lives = np.frombuffer(fact_ids, ">i8"), np.frombuffer(is_live, np.bool_)
        live = np.flatnonzero(lives)
        return cls(
            key_ids=np.frombuffer(key_ids, ">i8").astype(np.int64),
            fact_ids=facts.astype(np.int64),
            keys_ND=np.frombuffer(keys, STORED).reshape(-1, dim).astype(np.float32),
            stored=keys,
            live=live,
            dead=np.flatnonzero(~lives),
            first_of_fact=np.flatnonzero(np.diff(facts[live], prepend=-1)),
        )

    def nearest(self, scores_N: Vectors, k: int) -> Iterator[Candidate]:
        """Yield the keys that decide for one query: those of the k best live facts, and the best tombstone's."""
        if len(self.live):
            scores = scores_N[self.live]
            best_F = np.maximum.reduceat(scores, self.first_of_fact)
            least = np.partition(best_F, -k)[-k] if k < len(best_F) else -np.inf
            yield from (self._candidate(n, LIVE) for n in self.live[scores >= least].tolist())
        if len(self.dead):
            yield self._candidate(int(self.dead[np.argmax(scores_N[self.dead])]), None)

    def _candidate(self, n: int, version: int | None) -> Candidate:
        size = len(self.stored) // len(self.key_ids)
        key = self.stored[n * size : (n + 1) * size]
        return Candidate(int(self.key_ids[n]), int(self.fact_ids[n]), version, "", key)


def _chunks(session: Session, dim: int, of: Mapping[str, Any]) -> Iterator[_Chunk]:
    """Yield the keys of that time, a chunk at a time, with these parameters of the statement."""
    with connection_of(session).cursor("keys_of_then", binary=True) as cursor:
        cursor.itersize = 1
        for row in cursor.execute(_KEYS, of):
            yield _Chunk.of(dim, *row)


def _with_values(session: Session, rankings: Sequence[Ranking], seq: int) -> list[Ranking]:
    """Give the rankings with versions and values that their facts had at change `seq`, and their reviews of now."""
    fact_ids = sorted({hit.fact_id for ranking in rankings for hit in ranking.hits})
    rows = session.execute(_VALUES, {"fact_ids": fact_ids, "seq": seq})
    then = {row.fact_id: (row.version, row.value, row.review) for row in rows}
    key_ids = [hit.key_id for ranking in rankings for hit in ranking.hits]
    adopted = set(session.scalars(_ADOPTED, {"fact_ids": fact_ids, "key_ids": key_ids}))
    return [
        replace(
            ranking,
            hits=tuple(
                _valued(hit, *then[hit.fact_id], approximate=hit.key_id in adopted) for hit in ranking.hits
            ),
        )
        for ranking in rankings
    ]


def _valued(hit: Hit, version: int, value: str, review: Review, *, approximate: bool) -> Hit:
    return replace(hit, version=version, value=value, review=review, approximate=approximate)


def _needed(candidates: list[Candidate], query_D: Vectors, k: int) -> list[Candidate]:
    """Keep the candidates that may still decide the answer, so that memory does not grow with the base."""
    ranking = rank_candidates(query_D, candidates, k)
    tombstone = ranking.tombstone
    wanted = {hit.key_id for hit in ranking.hits}
    return [
        c
        for c in candidates
        if c.key_id in wanted or (c.version is None and tombstone and c.fact_id == tombstone[0])
    ]


def _fields(lookup: Lookup) -> dict[str, Any]:
    return {name: getattr(lookup, name) for name in Lookup.__dataclass_fields__}
