"""Holds all keys of a keyset in memory, for questions that need exact answers instead of an index's estimates.

Keys stay fp16 as they are stored; products are made in blocks, so that the memory used grows with the keys and not
with questions times keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sqlalchemy import Select, and_, func, select
from sqlalchemy.orm import Session

from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.keys.keysets import STORED, Ids, Vectors
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.tables import FactKeyRow, FactVersionRow, TombstoneRow

KEYS_AT_ONCE, QUERIES_AT_ONCE = 8192, 1024


@dataclass(frozen=True, slots=True)
class KeySpace:
    """Keys [N, d] and the ids [N] of their facts, ordered by fact id. A fact may have several keys."""

    fact_ids: Ids
    keys_ND: npt.NDArray[np.float16]

    @classmethod
    def live(cls, session: Session, keyset: KeysetHead) -> Self:
        """Read the keys of every live fact."""
        statement = _keys(keyset).join(
            FactVersionRow, and_(FactVersionRow.fact_id == FactKeyRow.fact_id, IS_LIVE)
        )
        return cls._read(session, keyset, statement)

    @classmethod
    def tombstones(cls, session: Session, keyset: KeysetHead) -> Self:
        """Read the keys of facts that were forgotten with the policy "abstain"."""
        statement = _keys(keyset).join(TombstoneRow, TombstoneRow.fact_id == FactKeyRow.fact_id)
        return cls._read(session, keyset, statement)

    @classmethod
    def of_facts(cls, session: Session, keyset: KeysetHead, fact_ids: Sequence[int]) -> Self:
        """Read the keys of these facts, live or deleted."""
        return cls._read(session, keyset, _keys(keyset).where(FactKeyRow.fact_id == func.any(list(fact_ids))))

    @classmethod
    def _read(cls, session: Session, keyset: KeysetHead, statement: Select[*tuple[Any, ...]]) -> Self:
        ids, keys = [np.empty(0, np.int64)], [np.empty((0, keyset.dim), STORED)]
        ordered = statement.order_by(FactKeyRow.fact_id, FactKeyRow.id).execution_options(yield_per=10_000)
        for rows in session.execute(ordered).partitions():
            ids.append(np.array([row.fact_id for row in rows], dtype=np.int64))
            stored = np.frombuffer(b"".join(row.key for row in rows), dtype=STORED)
            keys.append(stored.reshape(-1, keyset.dim))
        return cls(np.concatenate(ids), np.concatenate(keys))

    def __len__(self) -> int:
        return len(self.fact_ids)

    def vectors(self) -> Vectors:
        """Give all keys as float32."""
        return self.keys_ND.astype(np.float32)

    def restrict_to(self, fact_ids: Iterable[int]) -> Self:
        """Give the key space of these facts only."""
        return self._select_rows(np.isin(self.fact_ids, np.fromiter(fact_ids, dtype=np.int64)))

    def exclude(self, fact_ids: Iterable[int]) -> Self:
        """Give the key space of all facts but these."""
        return self._select_rows(~np.isin(self.fact_ids, np.fromiter(fact_ids, dtype=np.int64)))

    def _select_rows(self, chosen: npt.NDArray[np.bool_]) -> Self:
        return type(self)(self.fact_ids[chosen], self.keys_ND[chosen])

    def first_keys(self, fact_ids: Ids) -> tuple[npt.NDArray[np.bool_], Vectors]:
        """Say of each of these facts whether it has a key, and give the first key of each fact that has one."""
        at = np.searchsorted(self.fact_ids, fact_ids)
        has = np.zeros(len(fact_ids), dtype=bool)
        inside = at < len(self)
        has[inside] = self.fact_ids[at[inside]] == fact_ids[inside]
        return has, self.keys_ND[at[has]].astype(np.float32)

    def best_facts(self, queries_BD: Vectors) -> tuple[Vectors, Ids]:
        """Give each query's best score [B] and the fact [B] whose key has it; -inf and -1 where there are no keys.

        Ties go to the older fact, as in a lookup.
        """
        scores, ids = np.full(len(queries_BD), -np.inf, np.float32), np.full(len(queries_BD), -1, np.int64)
        for rows, keys, product in self._products(queries_BD):
            at = product.argmax(axis=1)
            found = product[np.arange(len(at)), at]
            better = found > scores[rows]
            scores[rows] = np.where(better, found, scores[rows])
            ids[rows] = np.where(better, self.fact_ids[keys][at], ids[rows])
        return scores, ids

    def nearest_facts(self, queries_BD: Vectors, k: int) -> Ids:
        """Give the ids of facts that own one of the k nearest keys of any query, ascending."""
        scores = np.full((len(queries_BD), k), -np.inf, np.float32)
        ids = np.full((len(queries_BD), k), -1, np.int64)
        for rows, keys, product in self._products(queries_BD):
            both = np.concatenate([scores[rows], product], axis=1)
            whose = np.concatenate([ids[rows], np.broadcast_to(self.fact_ids[keys], product.shape)], axis=1)
            top = np.argpartition(-both, k - 1, axis=1)[:, :k]
            scores[rows] = np.take_along_axis(both, top, axis=1)
            ids[rows] = np.take_along_axis(whose, top, axis=1)
        return np.unique(ids[ids >= 0])

    def are_within(self, queries_BD: Vectors, radius: float) -> npt.NDArray[np.bool_]:
        """Say for each key [N] whether its score with any of the queries is at least `radius`."""
        near = np.zeros(len(self), dtype=bool)
        for _, keys, product in self._products(queries_BD):
            near[keys] |= (product >= radius).any(axis=0)
        return near

    def _products(self, queries_BD: Vectors) -> Iterator[tuple[slice, slice, Vectors]]:
        """Yield blocks of the inner products [B, N]: which queries, which keys, and their scores."""
        for start in range(0, len(self), KEYS_AT_ONCE):
            keys = slice(start, min(start + KEYS_AT_ONCE, len(self)))
            keys_DN = self.keys_ND[keys].astype(np.float32).T
            for first in range(0, len(queries_BD), QUERIES_AT_ONCE):
                rows = slice(first, first + QUERIES_AT_ONCE)
                yield rows, keys, queries_BD[rows] @ keys_DN


def _keys(keyset: KeysetHead) -> Select[*tuple[Any, ...]]:
    return select(FactKeyRow.fact_id, FactKeyRow.key).where(FactKeyRow.keyset_id == keyset.keyset_id)
