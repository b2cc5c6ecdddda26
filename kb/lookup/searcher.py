"""Answers lookups: searches the index, then one SELECT decides which candidates are live facts (`Decider`).

So deleted facts drop out however far the index lags, and where the index or its keyset turns out to be out of date, the
search is repeated after catching up. A query nearest to the key of a tombstone is no match.
In the steady state a lookup costs one search and one round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Engine, Row

from colmlm.kb.errors import CandidatesUnavailable, IndexBehind, InvalidQuery, KeysetMismatch, refusals
from colmlm.kb.facts.reading import require_corpus
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.log import audit
from colmlm.kb.lookup.open_replicas import Replicas, open_caught_up_replica
from colmlm.kb.lookup.options import FOUND_BY_KEY, USUAL_FACTS, FactFilter, FilteredOptions, FullLookupOptions
from colmlm.kb.lookup.ranking import (
    SPARE,
    Yields,
    as_queries,
    decide_lookup,
    rank_candidates,
    rank_each,
    rank_together,
    settle_ranking,
)
from colmlm.kb.lookup.records import Lookup, Observer, Ranking
from colmlm.kb.lookup.replica import Replica
from colmlm.kb.store import database


@dataclass(slots=True)
class Searcher(Replicas):
    """Answers lookups with the replica of the active keyset; there is one in each process, shared by its threads.

    `reader` is the engine of the deciding SELECT. With a `keyset_id` the replica is of that keyset, active or not.
    """

    def of_keyset(self, keyset_id: int, replica: Replica | None = None) -> Searcher:
        """Give a searcher of one keyset with its own index: this `replica`, or one that the first lookup opens."""
        return Searcher(self.reader, self.sessions, self.settings, keyset_id, _replica=replica)

    def find(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        by_rule: bool = True,
        **options: Unpack[FilteredOptions],
    ) -> list[Lookup]:
        """Find the best facts of each query, as `Lookups.find` describes. Without `by_rule` only scores order them.

        In a named keyset it raises `KeysetMismatch` where the queries are of another checkpoint, `KeysetNotFound`, and
        `KeysetNotReady` where the keyset is building or retired.
        """
        with self.observer.timed("lookup"):
            wanted = FullLookupOptions.from_options(options)
            self._require_corpora(wanted.fact_filter.corpora)
            if wanted.min_seq is not None:
                self.await_change(wanted.min_seq)
            spare = SPARE if by_rule else 0
            rankings, decision, seq = self._rank_facts(as_queries(queries_BD), checkpoint_id, wanted, spare)
            least = decision.threshold if wanted.threshold is None else wanted.threshold
            if by_rule and (yields := decision.yields):
                rankings = [settle_ranking(ranking, yields, least, wanted.k) for ranking in rankings]
            found = [decide_lookup(ranking, wanted.k, least, seq) for ranking in rankings]
        self.observer.looked_up(found)
        return found

    def nearest(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int,
        fact_filter: FactFilter = USUAL_FACTS,
    ) -> list[Ranking]:
        """Rank the k live facts nearest to each query, and give its nearest tombstone. No threshold applies.

        Facts that are filtered out are passed over, however many they are. It raises what `find` does.
        """
        with self.observer.timed("lookup"):
            wanted = FullLookupOptions(k, fact_filter=fact_filter)
            self._require_corpora(fact_filter.corpora)
            rankings, _, _ = self._rank_facts(as_queries(queries_BD), checkpoint_id, wanted)
        return rankings

    def among(
        self,
        queries_BD: npt.NDArray[Any],
        added: Sequence[Mapping[int, float]],
        *,
        checkpoint_id: str,
        threshold: float | None,
        seq: int,
        fact_filter: FactFilter = USUAL_FACTS,
    ) -> list[Lookup]:
        """Find the best live fact of each query among some keys: `added` has their ids and what to add to their scores.

        The SELECT that decides is that of `find`. `seq` is the change as of which the keys were chosen. Raises
        `KeysetMismatch`, also where another keyset was activated since.
        """
        replica = self._open_replica()
        decision = self._decider.decide(replica.keyset_id, sorted(set().union(*added)), fact_filter)
        if decision.checkpoint_id != checkpoint_id:
            raise KeysetMismatch(checkpoint_id, str(decision.checkpoint_id), self.keyset_id)
        least = decision.threshold if threshold is None else threshold
        found = []
        for query_D, scores in zip(as_queries(queries_BD), added, strict=True):
            rows = [decision.keys[i] for i in scores if i in decision.keys]
            ranking = rank_candidates(query_D, rows, 1 + SPARE, scores)
            found.append(decide_lookup(settle_ranking(ranking, decision.yields, least, 1), 1, least, seq))
        self.observer.looked_up(found)
        return found

    def _rank_facts(
        self, queries: Vectors, checkpoint_id: str, wanted: FullLookupOptions, spare: int = 0
    ) -> tuple[list[Ranking], Decision, int]:
        """Rank the nearest facts of each query; give the rankings, the decision, and the last change they include.

        Up to `spare` facts beyond the k wanted ones are ranked, if the search found them too.
        """
        replica = self._open_replica()
        required: int | None = None
        was_lost = False
        while True:
            seq = replica.applied_seq  # read before the search, which may see later changes but never fewer
            try:
                found, decision = self._search(
                    replica, seq, queries if checkpoint_id == replica.checkpoint_id else None, wanted, spare
                )
            except CandidatesUnavailable:
                if was_lost or not replica.candidates.is_lost:
                    raise
                replica, was_lost = self.current(), True
                continue
            # The head of the first SELECT is enough: later changes were made during the lookup.
            required = decision.head if required is None else required
            if decision.keyset_id != replica.keyset_id:
                replica = self.current()
            elif seq >= required or self._has_merged_keys(replica, seq, queries, found, decision, wanted):
                break
        if decision.checkpoint_id != checkpoint_id:
            raise KeysetMismatch(checkpoint_id, str(decision.checkpoint_id), self.keyset_id)
        return found, decision, max(seq, required)

    def _has_merged_keys(
        self,
        replica: Replica,
        seq: int,
        queries_BD: Vectors,
        found: list[Ranking],
        decision: Decision,
        wanted: FullLookupOptions,
    ) -> bool:
        """Catch up, and merge the keys that the index got after change `seq` into the rankings `found`.

        One more SELECT decides on all keys, old and new, so that no answer mixes two states. False means that the index
        must be searched again: it got too many keys, facts contradict, or the earlier `decision` no longer holds.
        """
        self._catch_up(replica)
        added = replica.added.since(seq)
        if added and found:
            again = self._decider.decide(replica.keyset_id, [*decision.keys, *added], wanted.fact_filter)
            if not again.confirms(decision) or any(row.yields_to is not None for row in again.keys.values()):
                return False
            rows = _rankable_keys(again, added, wanted)
            found[:] = rank_together(found, queries_BD, rows, wanted.k)
        return added is not None

    def _search(
        self, replica: Replica, seq: int, queries_BD: Vectors | None, wanted: FullLookupOptions, spare: int
    ) -> tuple[list[Ranking], Decision]:
        """Rank the k nearest live facts of each query, or all if there are fewer; give the rankings and the decision.

        The decision is the last one, with the head of the first and all keys found. The index is asked for more keys
        than k: some share a fact, some facts are deleted, and proposed ones may be left out. If fewer than k facts
        remain, it is asked for twice as many. An approximate index is also asked again where it gave keys of facts
        deleted past `seq`, which took the places of others. Of the keys of an exact index, those that can be among the
        k best are looked up in the database first.
        """
        if queries_BD is None:  # of another checkpoint: only whether this keyset is still active is read
            return [], self._decider.decide(replica.keyset_id, [], wanted.fact_filter)
        if queries_BD.shape[1] != replica.dim:
            raise InvalidQuery(f"it has {queries_BD.shape[1]} numbers, the keys have {replica.dim}")
        k, answers = wanted.k, [Ranking() for _ in queries_BD]
        known: dict[int, Row[Any]] = {}
        proposing = replica.candidates_of(
            wanted.fact_filter.corpora, partial(database.read_from, self.reader)
        )
        short, least = np.arange(len(queries_BD)), proposing.over_fetch(k)
        fetch, narrowed = least, not proposing.is_estimating
        undecided: Ids | None = None  # found before
        head: int | None = None
        while True:
            if undecided is None:
                with self.observer.timed("search"):
                    scores, found = proposing.search(queries_BD[short], fetch)
                candidates = contenders(scores, found, k) if narrowed else found
            else:
                found = candidates = undecided
            key_ids = np.unique(candidates[candidates >= 0]).tolist()
            decision = self._decider.decide(replica.keyset_id, key_ids, wanted.fact_filter)
            known |= decision.keys
            head = decision.head if head is None else head  # what was found first may be gone at the last
            rows_B = [_rankable_keys(decision, ids, wanted) for ids in candidates.tolist()]
            ranked = rank_each(queries_BD[short], rows_B, k + (spare if decision.yields else 0))
            for b, ranking in zip(short, ranked, strict=True):
                answers[b] = ranking
            # By what was found, since the index may change meanwhile.
            exhausted = (found < 0).any(axis=1) & (candidates == found).all(axis=1)
            scored = least if proposing.is_estimating and decision.head > seq else 0
            lacking = np.array(
                [
                    len(answers[b].hits) < k or len(rows) < scored
                    for b, rows in zip(short, rows_B, strict=True)
                ],
                dtype=bool,
            )
            again = lacking & ~exhausted
            if narrowed and decision.yields:
                again[:] = True  # a fact yields to others that were found, which may score less
            undecided = found[again] if narrowed else None
            short, fetch, narrowed = short[again], fetch if narrowed else 2 * fetch, False
            if decision.keyset_id != replica.keyset_id or len(short) == 0:
                return answers, replace(decision, head=head, keys=known)

    def _require_corpora(self, corpora: Sequence[str]) -> None:
        """Raise `CorpusNotFound` for a corpus that never had a document. A known one is not looked up again."""
        if unknown := [corpus for corpus in corpora if corpus not in self._known_corpora]:
            with self.sessions() as session:
                for corpus in unknown:
                    require_corpus(session, corpus)
            self._known_corpora.update(unknown)

    @property
    def _decider(self) -> Decider:
        return Decider(self.reader, self.keyset_id, self.observer)

    def await_change(self, min_seq: int) -> None:
        """Catch up to change `min_seq`, or wait until another thread that is catching up has done so.

        Raises `NoSuchChange` at once where that change does not exist, and `IndexBehind` where catching up takes too
        long.
        """
        replica = self._open_replica()
        if replica.applied_seq >= min_seq:
            return
        with self.sessions() as session:
            if min_seq > (head := audit.head_seq(session)):
                raise refusals.no_such_change(min_seq, head)
        if (applied := self._catch_up(replica, self.settings.index_wait_seconds)) < min_seq:
            raise IndexBehind(min_seq, applied, self.settings.index_wait_seconds)

    def former(self, checkpoint_id: str) -> Searcher | None:
        """Give a searcher of this checkpoint's ready keyset, for queries made before another keyset was activated.

        None where the checkpoint has none, or its keyset is active. The index is the one on standby for a rollback.
        """
        with self._opening, self.sessions() as session:
            keyset_id = keysets.ready_keyset_of(session, checkpoint_id)
            if keyset_id is None:
                return None
            if (held := self._standby) is None or held.keyset_id != keyset_id or held.candidates.is_lost:
                self._standby = open_caught_up_replica(
                    session, keysets.keyset_head(session, keyset_id), self.settings
                )
            return replace(self.of_keyset(keyset_id, self._standby), observer=self.observer)


def _rankable_keys(decision: Decision, key_ids: Iterable[int], wanted: FullLookupOptions) -> list[Row[Any]]:
    """Give the rows that the SELECT found for these keys, in this order, without facts that the filter leaves out."""
    rows = [decision.keys[key_id] for key_id in key_ids if key_id in decision.keys]
    without = wanted.fact_filter.without
    return [row for row in rows if row.fact_id not in without] if without else rows


# Contenders: the candidates of an exact search that can be among the k best facts.
#
# Reading a key from the database takes longer than finding it, and of the spare ones that a search asks for
# few are ever needed: where one of the best is dead, or a fact has two.

ROUNDING = 1e-4  # by more than this no two products of the same unit vectors differ


def contenders(scores_BF: Vectors, candidates_BF: Ids, k: int) -> Ids:
    """Give the candidates [B, F], which come best first, with -1 for each that is over `ROUNDING` below the k-th."""
    if candidates_BF.shape[1] <= k:
        return candidates_BF
    return np.where(scores_BF >= scores_BF[:, k - 1 : k] - ROUNDING, candidates_BF, -1)


# Decides which of the keys that a search found are of live facts, in one SELECT.
#
# It gives, from one snapshot of the database: the head of the change log, the keyset that answers, and those
# candidate keys whose facts are live, with value and exact key. Keys of tombstones come without a value.
# Facts that are only proposed come with their review, or not at all where only accepted ones are to be found.
# A standby decides nothing, as it may still have what was deleted.

# The driver runs this itself: in its binary form keys come as stored, and a prepared statement is planned once. Every
# row is sought by its id, one after the other (LIMIT keeps the planner from joining otherwise): it expects more
# candidates than most lookups have, and would read a small base whole for them.
# "active" is the keyset that answers: the active one, or one that is asked for by its id. Whether anything contradicts
# is asked once, since in most bases nothing does.
_DECIDE = """
SELECT coalesce((SELECT max(seq) FROM change), 0) AS head, pg_is_in_recovery() AS is_standby,
       active.id AS keyset_id, active.checkpoint_id, active.threshold,
       found.key_id, found.fact_id, found.version, found.value, found.key, found.review, found.approximate,
       found.yields_to
FROM (SELECT) AS always
LEFT JOIN keyset active ON active.state = 'active'
LEFT JOIN LATERAL (
    SELECT k.key_id, k.fact_id, v.version, v.value, k.key, f.review,
           k.kind = 'adopted' AS approximate,
           CASE WHEN EXISTS (SELECT FROM fact_pair WHERE NOT same_value AND score IS NULL AND held_seq IS NULL) THEN
               ARRAY(SELECT y.to_id FROM fact_yield y WHERE y.fact_id = k.fact_id AND y.version = v.version)
           END AS yields_to
    FROM unnest(%(key_ids)s::bigint[]) AS candidate (id)
    CROSS JOIN LATERAL (
        SELECT id AS key_id, fact_id, kind, key FROM fact_key
        WHERE keyset_id = %(keyset_id)s::bigint AND id = candidate.id LIMIT 1
    ) AS k
    CROSS JOIN LATERAL (SELECT review, document_id FROM fact WHERE id = k.fact_id LIMIT 1) AS f
    LEFT JOIN LATERAL (
        SELECT version, value FROM fact_version WHERE fact_id = k.fact_id AND to_seq IS NULL LIMIT 1
    ) AS v ON true
    WHERE active.id = %(keyset_id)s::bigint AND FOUND_BY_KEY
) AS found ON true
""".replace("FOUND_BY_KEY", FOUND_BY_KEY)
_DECIDE_ONE = _DECIDE.replace(
    "active.state = 'active'", "active.id = %(keyset_id)s::bigint AND active.state IN ('ready', 'active')"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of the SELECT: the head, the keyset that answers, and by key id the live candidates and tombstones."""

    head: int
    keyset_id: int | None
    checkpoint_id: str | None
    threshold: float
    keys: dict[int, Row[Any]]

    @property
    def yields(self) -> Yields:
        return {row.fact_id: row.yields_to for row in self.keys.values() if row.yields_to}

    def confirms(self, earlier: Decision) -> bool:
        """Say whether the keyset, its threshold and the rows of all keys are still as in an `earlier` decision."""
        mine = self.keyset_id, self.checkpoint_id, self.threshold
        theirs = earlier.keyset_id, earlier.checkpoint_id, earlier.threshold
        return mine == theirs and all(self.keys.get(key_id) == row for key_id, row in earlier.keys.items())


@dataclass(frozen=True, slots=True)
class Decider:
    """Runs the deciding SELECT on an engine of its own, `reader`, which sends no BEGIN, no ROLLBACK and no ping.

    The active keyset is to answer, or the one whose id is `asked`.
    """

    reader: Engine
    asked: int | None
    observer: Observer

    def decide(self, keyset_id: int, key_ids: list[int], fact_filter: FactFilter) -> Decision:
        parameters = {
            "keyset_id": keyset_id,
            "key_ids": database.id_array(key_ids),
            **fact_filter.parameters,
        }
        with self.observer.timed("select"):
            rows = database.read_from(self.reader, partial(self._fetch, parameters))
        keys = {row.key_id: row for row in rows if row.key_id is not None}
        first = rows[0]
        if first.is_standby:
            raise refusals.standby_asked()
        return Decision(first.head, first.keyset_id, first.checkpoint_id, first.threshold, keys)

    @property
    def _statement(self) -> str:
        return _DECIDE if self.asked is None else _DECIDE_ONE

    def _fetch(self, parameters: dict[str, Any], connection: psycopg.Connection) -> list[Any]:
        with connection.cursor(binary=True, row_factory=namedtuple_row) as cursor:
            return cursor.execute(self._statement, parameters, prepare=True).fetchall()
