"""Looks up in a trial index of another kind than the active one, to measure what compressing keys costs.

The trial index is built in memory from keys of the active keyset, with or without those of some corpora, and is never
saved. Its lookups work as usual: candidates come from the index, and their exact scores, values and liveness from the
database. With a kind that ends in "-first", the only candidate is the one that the index ranks first, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sqlalchemy import func, select

from colmlm.kb.errors import InvalidValue
from colmlm.kb.facts import reading
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import indexed_keys
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.in_process import InProcess
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.replica import Replica
from colmlm.kb.lookup.searcher import Searcher
from colmlm.kb.lookup.specs import FLAT_SPEC, default_nlist
from colmlm.kb.tables import DocumentRow, FactKeyRow, FactRow

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase

# How many numbers of a key one byte of its code stands for; 0: keys are not compressed.
KINDS = {"exact": 0, "pq4": 4, "pq10": 10, "pq4-first": 4, "pq10-first": 10}
AS_FOUND = "-first"


class FirstFound(KeyIndex):
    """An index that fetches no more than k candidates, in the order of their compressed keys."""

    def over_fetch(self, k: int) -> int:
        return k


def spec_of(kind: str, num_keys: int, dim: int) -> str:
    """Gives the Faiss factory string of a kind: exact, or the paper's with codes of d/4 or d/10 bytes per key."""
    if (share := KINDS[kind]) == 0:
        return FLAT_SPEC
    size = max(1, dim // share)
    return f"OPQ{size}_{dim // size * size},IVF{default_nlist(num_keys)},PQ{size}"


@dataclass(frozen=True, slots=True)
class TrialIndex:
    """A trial index and the lookups in it. `spec` is its factory string; it holds `num_keys` keys."""

    lookups: Searcher
    spec: str
    num_keys: int

    @classmethod
    def of(cls, kb: KnowledgeBase, kind: str, without: Sequence[str] = ()) -> Self:
        """Builds an index of this kind over the active keyset's keys, without those of the corpora in `without`.

        Raises `CorpusNotFound`, and `InvalidValue` where there are too few keys to train it.
        """
        with kb.sessions() as session:
            for corpus in without:
                reading.require_corpus(session, corpus)
            head = keysets.active_head(session)
            seq = audit.head_seq(session)  # read before the keys
            left_out = _keys_of(session, head.keyset_id, without)
            num_keys = sum(len(ids) for ids, _ in _kept(session, head, left_out))
            if num_keys == 0:
                raise InvalidValue("index", "there is no key to put into it")
            made = FirstFound if kind.endswith(AS_FOUND) else KeyIndex
            index = made(head.dim, spec_of(kind, num_keys, head.dim))
            if num_keys < index.train_min:
                raise InvalidValue(
                    "index", f"{kind} is trained on {index.train_min} keys, there are {num_keys}"
                )
            if index.train_min:
                every = max(1, num_keys // index.train_size)
                index.train(np.concatenate([keys[::every] for _, keys in _kept(session, head, left_out)]))
            for ids, keys in _kept(session, head, left_out):
                index.add(ids, keys)
        replica = Replica(head.keyset_id, head.checkpoint_id, head.dim, InProcess(index, seq))
        return cls(kb.searcher.of_keyset(head.keyset_id, replica), index.spec, num_keys)


def _keys_of(session: Any, keyset_id: int, corpora: Sequence[str]) -> Ids:
    """Gives the ids of these corpora's keys, ascending."""
    statement = (
        select(FactKeyRow.id)
        .join(FactRow, FactRow.id == FactKeyRow.fact_id)
        .join(DocumentRow, DocumentRow.id == FactRow.document_id)
        .where(FactKeyRow.keyset_id == keyset_id, DocumentRow.corpus == func.any(list(corpora)))
    )
    found = session.scalars(statement).all() if corpora else []
    return np.sort(np.array(found, dtype=np.int64))


def _kept(session: Any, head: KeysetHead, left_out: Ids) -> Iterator[tuple[Ids, Vectors]]:
    for ids, keys in indexed_keys(session, head.keyset_id, head.dim):
        kept = ~np.isin(ids, left_out)
        yield ids[kept], keys[kept]
