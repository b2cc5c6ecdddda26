"""Lookups: what queries find in a store, now or as of a change of the log.

Values come from `fact_version`, where "true at change n" is a range test. The keyset that was active then, with its
threshold and keys of that time, is read from the log, so that no later edit alters what is reported of the past. An
index holds only current keys, so the keys of all facts that were live then are read from the database and compared
exactly, a chunk at a time.

Ids of keys come from one sequence that is only drawn from under the log's lock, so they grow with the changes that
stored them: the keys of a time are those whose ids are smaller than every id stored since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
from sqlalchemy import BigInteger, Select, cast, select, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidQuery, NoActiveKeyset, refusals
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.pairs import yields_then
from colmlm.kb.facts.reading import require_corpus
from colmlm.kb.facts.records import Review
from colmlm.kb.keys import keysets
from colmlm.kb.keys.activation import num_indexed_keys
from colmlm.kb.keys.keysets import STORED, Vectors
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.options import (
    FOUND_BY_KEY_THEN,
    USUAL_FACTS,
    FactFilter,
    FilteredOptions,
    FullLookupOptions,
    LookupOptions,
)
from colmlm.kb.lookup.ranking import (
    SPARE,
    Candidate,
    as_queries,
    decide_lookup,
    rank_candidates,
    settle_ranking,
)
from colmlm.kb.lookup.records import AsOfLookup, Hit, IndexMemory, Lookup, LookupSpace, Ranking
from colmlm.kb.lookup.replica import snapshots_of
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.store import Store, require_primary
from colmlm.kb.tables import ChangeRow, CheckpointRow, KeysetRow

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class Lookups:
    """Answers lookups in a store, with one index for each process."""

    store: Store
    searcher: Searcher

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]:
        """Find the best live facts for each query [B, d].

        Of facts that contradict each other and are about as near, the accepted one comes first, or else the newer one.
        Raises `IndexBehind` where the index does not reach `min_seq` in time, and `NoSuchChange` at once where that
        change does not exist. Raises `KeysetMismatch` where the queries are not of the active keyset's checkpoint.
        """
        return self.searcher.find(queries_BD, checkpoint_id=checkpoint_id, **options)

    def nearest(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int,
        fact_filter: FactFilter = USUAL_FACTS,
    ) -> list[Ranking]:
        """Find the k live facts nearest to each query [B, d], and its nearest tombstone, which hides no fact here."""
        return self.searcher.nearest(queries_BD, checkpoint_id=checkpoint_id, k=k, fact_filter=fact_filter)

    def catch_up(self) -> int:
        """Apply every committed change to this process's index and give the seq reached."""
        return self.searcher.catch_up()

    def rebuild(self) -> None:
        """Build the active keyset's index and snapshot again from the database alone."""
        self.searcher.rebuild()

    def snapshot(self, *, share: bool = False) -> None:
        """Write the active keyset's index to disk, so that the next process starts from it.

        With `share` it is also copied to where servers share snapshots, if there is such a place.
        """
        self.searcher.snapshot(share=share)

    def as_of(self, seq: int) -> AsOf:
        """Give lookups in the base as of change `seq`. Raises `NoSuchChange`."""
        with self.store.sessions() as session:
            audit.require_change(session, seq)
        return AsOf(self.store, seq)

    def in_keyset(self, keyset_id: int) -> Searcher:
        """Give a searcher of one keyset, active or not. It opens no index yet."""
        return self.searcher.of_keyset(keyset_id)

    def standing(self) -> IndexStanding:
        """Give the state of this process's index without catching up. It takes two small statements."""
        return index_standing(self.store, self.searcher)

    def space(self) -> LookupSpace:
        """Give the space of the queries that lookups answer now, with the threshold and the last change.

        A decoder on another machine has to know it before it asks. No keys are counted. Raises `NoActiveKeyset`.
        """
        with self.store.sessions() as session:
            statement = select(
                KeysetRow.id,
                KeysetRow.checkpoint_id,
                CheckpointRow.name,
                CheckpointRow.dim,
                KeysetRow.threshold,
                KeysetRow.calibrated,
            ).join(CheckpointRow, CheckpointRow.id == KeysetRow.checkpoint_id)
            row = session.execute(statement.where(KeysetRow.state == "active")).one_or_none()
            if row is None:
                raise NoActiveKeyset
            return LookupSpace(*row, head_seq=audit.head_seq(session))


# Reports how far the index of a process has followed the database.


@dataclass(frozen=True, slots=True)
class IndexStanding:
    """The state of a process's index.

    `applied_seq` is None where no index is open, `snapshot_at` without a snapshot, and `memory` unless torch searches.
    """

    head_seq: int
    applied_seq: int | None
    snapshot_at: datetime | None
    memory: IndexMemory | None = None

    @property
    def lag(self) -> int | None:
        """The number of changes that the next lookup would have to apply first."""
        return None if self.applied_seq is None else max(0, self.head_seq - self.applied_seq)


def index_standing(store: Store, searcher: Searcher) -> IndexStanding:
    """Give the state of this process's index without catching up. It takes two small statements."""
    applied_seq, keyset_id = searcher.applied_seq, searcher.keyset_in_use
    with store.sessions() as session:
        head = audit.head_seq(session)
        snapshot_at = _snapshot_at(session, store, keyset_id) if keyset_id is not None else None
    return IndexStanding(head, applied_seq, snapshot_at, searcher.memory)


def _snapshot_at(session: Session, store: Store, keyset_id: int) -> datetime | None:
    """Give the time at which the snapshot on disk was written, perhaps by another process of this home."""
    manifest = snapshots_of(session, store.settings.index_directory) / f"keyset-{keyset_id}.json"
    try:
        return datetime.fromtimestamp(manifest.stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


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
    """Lookups in the knowledge base as of change `seq`.

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
        wanted = FullLookupOptions.from_options(options)
        fact_filter = wanted.fact_filter.of_past()
        if wanted.min_seq is not None and wanted.min_seq > self.seq:
            raise InvalidQuery(f"change {wanted.min_seq} came after {self.seq}. Leave min_seq out")
        queries = as_queries(queries_BD)
        with self.store.sessions() as session:
            session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            require_primary(session)
            audit.require_change(session, self.seq)
            for corpus in fact_filter.corpora:
                require_corpus(session, corpus)
            then = keyset_then(session, checkpoint_id, self.seq)
            if queries.shape[1] != then.keyset.dim:
                raise InvalidQuery(f"it has {queries.shape[1]} numbers, the keys have {then.keyset.dim}")
            num_keys = num_indexed_keys(session, then.keyset.keyset_id)
            if len(queries) * num_keys > (limit := self.store.settings.as_of_max_scores):
                raise refusals.past_too_large(len(queries), num_keys, limit)
            lost = session.execute(_LOST, _keyset_parameters(then, self.seq)).one()
            of = {**_keyset_parameters(then, self.seq), **fact_filter.parameters, "chunk": self.keys_at_once}
            chunks = _chunks(session, then.keyset.dim, of)
            rankings = _with_values(session, self._rankings(chunks, queries, wanted.k + SPARE), self.seq)
            said = {hit.fact_id: hit.version for ranking in rankings for hit in ranking.hits}
            yields = yields_then(session, said, self.seq)
        least = then.threshold if wanted.threshold is None else wanted.threshold
        settled = (settle_ranking(ranking, yields, least, wanted.k) for ranking in rankings)
        found = (decide_lookup(ranking, wanted.k, least, self.seq) for ranking in settled)
        return [
            AsOfLookup(**_fields_of(lookup), redacted=lost.redacted, unkeyed=lost.unkeyed) for lookup in found
        ]

    def _rankings(self, chunks: Iterable[_Chunk], queries_BD: Vectors, k: int) -> list[Ranking]:
        """Rank the nearest facts of each query, without their values."""
        candidates: list[list[Candidate]] = [[] for _ in queries_BD]
        for chunk in chunks:
            for first in range(0, len(queries_BD), self.queries_at_once):
                scores_BN = queries_BD[first : first + self.queries_at_once] @ chunk.keys_ND.T
                for b, scores_N in enumerate(scores_BN, start=first):
                    candidates[b] = _deciding_candidates(
                        [*candidates[b], *chunk.nearest(scores_N, k)], queries_BD[b], k
                    )
        return [
            rank_candidates(query_D, near, k) for query_D, near in zip(queries_BD, candidates, strict=True)
        ]


def _keyset_parameters(then: KeysetThen, seq: int) -> dict[str, Any]:
    """Give the parameters of the statements below on the keyset as of change `seq`."""
    return {"keyset_id": then.keyset.keyset_id, "end": then.end, "later": list(then.later), "seq": seq}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some keys as of a change, ordered by fact: `live` are the positions of keys of live facts, `dead` of tombstones.

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
    """Yield the keys as of a change, a chunk at a time. `of` has the parameters of the statement."""
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
                _fill_hit(hit, *then[hit.fact_id], approximate=hit.key_id in adopted) for hit in ranking.hits
            ),
        )
        for ranking in rankings
    ]


def _fill_hit(hit: Hit, version: int, value: str, review: Review, *, approximate: bool) -> Hit:
    return replace(hit, version=version, value=value, review=review, approximate=approximate)


def _deciding_candidates(candidates: list[Candidate], query_D: Vectors, k: int) -> list[Candidate]:
    """Keep the candidates that may still decide the answer, so that memory does not grow with the base."""
    ranking = rank_candidates(query_D, candidates, k)
    tombstone = ranking.tombstone
    wanted = {hit.key_id for hit in ranking.hits}
    return [
        c
        for c in candidates
        if c.key_id in wanted or (c.version is None and tombstone and c.fact_id == tombstone[0])
    ]


def _fields_of(lookup: Lookup) -> dict[str, Any]:
    return {name: getattr(lookup, name) for name in Lookup.__dataclass_fields__}


_OF_KEYSET = cast(ChangeRow.payload["keyset"].astext, BigInteger)

# Changes written before the log recorded the ids of keys stored one key for each fact they name. So where n such
# changes after :seq name a fact, its last n keys were stored after :seq.
_LATER = text("""
SELECT numbered.id FROM (
    SELECT k.id, row_number() OVER (PARTITION BY k.fact_id ORDER BY k.id DESC) AS nth, since.num_keys
    FROM (
        SELECT fact_id, count(*) AS num_keys FROM change c CROSS JOIN unnest(c.fact_ids) AS fact_id
        WHERE c.kind = 'key' AND c.seq > :seq AND c.seq < :told AND c.payload -> 'keys' IS NULL
          AND CAST(c.payload ->> 'keyset' AS bigint) = :keyset_id
        GROUP BY fact_id
    ) AS since
    JOIN fact_key k ON k.keyset_id = :keyset_id AND k.fact_id = since.fact_id AND k.id < :end
) AS numbered WHERE numbered.nth <= numbered.num_keys
""")


@dataclass(frozen=True, slots=True)
class KeysetThen:
    """A keyset as of a change: its keys are those with ids below `end`, except the ids in `later`."""

    keyset: KeysetHead
    threshold: float
    end: int
    later: tuple[int, ...]


def keyset_then(session: Session, checkpoint_id: str, seq: int) -> KeysetThen:
    """Find the keyset that answered queries of this checkpoint as of change `seq`.

    Raises `NotAnsweredThen` where no keyset was active, or one of another checkpoint, or one that was retired since.
    """
    keyset = _active_keyset_then(session, checkpoint_id, seq)
    told, end = _stored_since(session, seq)
    of = {"keyset_id": keyset.keyset_id, "seq": seq, "told": told, "end": end}
    later = tuple(session.scalars(_LATER, of))
    return KeysetThen(keyset, _threshold(session, keyset, seq), end, later)


def _active_keyset_then(session: Session, checkpoint_id: str, seq: int) -> KeysetHead:
    activated = select(_OF_KEYSET).where(ChangeRow.kind == "activate", ChangeRow.seq <= seq)
    keyset_id: int | None = session.scalar(_last_change(activated))
    if keyset_id is None:
        raise refusals.not_answered_then(seq, "no keyset was active yet")
    keyset = keysets.keyset_head(session, keyset_id)
    if keyset.checkpoint_id != checkpoint_id:
        raise refusals.not_answered_then(
            seq,
            f"keyset {keyset_id} of checkpoint {keyset.checkpoint_id!r} answered then, but these queries are of "
            f"{checkpoint_id!r}. Their vectors cannot be compared. Ask with that checkpoint",
        )
    if keyset.state == "retired":
        raise refusals.not_answered_then(
            seq,
            f"keyset {keyset_id} answered then, but it was retired and its keys were dropped. "
            "`colmlm log diff` still shows which facts there were",
        )
    return keyset


def _threshold(session: Session, keyset: KeysetHead, seq: int) -> float:
    """Give the keyset's threshold as of change `seq`: the last one set by then, else the one that it began with."""
    changed = select(ChangeRow.payload["threshold"].astext).where(
        ChangeRow.kind == "threshold",
        _OF_KEYSET == keyset.keyset_id,  # noqa: SIM300 - a column
    )
    then: str | None = session.scalar(_last_change(changed.where(ChangeRow.seq <= seq)))
    if then is not None:
        return float(then)
    was_set_since = session.scalar(_last_change(changed)) is not None
    return keysets.DEFAULT_THRESHOLD if was_set_since else keyset.threshold


def _stored_since(session: Session, seq: int) -> tuple[int, int]:
    """Find the first change past `seq` that records key ids; give its seq and first key id, or `MAX_ID` for both."""
    keys = ChangeRow.payload["keys"]
    statement = select(ChangeRow.seq, cast(keys[0].astext, BigInteger)).where(
        ChangeRow.kind == "key", ChangeRow.seq > seq, keys.is_not(None)
    )
    row = session.execute(statement.order_by(ChangeRow.seq).limit(1)).one_or_none()
    return (row[0], row[1]) if row else (MAX_ID, MAX_ID)


def _last_change(statement: Select[Any]) -> Select[Any]:
    return statement.order_by(ChangeRow.seq.desc()).limit(1)
