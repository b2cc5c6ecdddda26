"""InProcess: candidates from a Faiss index in this process, which it builds, fits to its keys and outgrows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy.orm import Session

from colmlm.kb.errors import IndexInvariant
from colmlm.kb.keys import counting, keysets
from colmlm.kb.keys.keycopy import indexed_keys
from colmlm.kb.keys.keysets import AUTO_SPEC, Ids, Vectors
from colmlm.kb.keys.records import RECALL, IndexFit, KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.fitting import Nearest, fit_lists, fitting_spec, moved, parted
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.specs import FLAT_SPEC, collection_of, default_spec, parsed

OnKeys = Callable[[int, int], None]


@dataclass(slots=True)
class InProcess:
    """A Faiss index with every change up to `applied_seq` applied, and perhaps later ones.

    `recall` is the share of nearest keys that it found when it was fitted to its keys; None where that is not known.
    """

    index: KeyIndex
    applied_seq: int
    recall: float | None = None

    @property
    def is_lost(self) -> bool:
        return False

    @property
    def ids(self) -> Ids:
        return self.index.ids

    @property
    def fit(self) -> IndexFit:
        index = self.index
        spare = index.spare if index.lists else None
        return IndexFit(index.spec, index.lists, index.lists_read, self.recall, spare)

    @property
    def is_estimating(self) -> bool:
        return self.index.lists > 0

    @property
    def num_twice(self) -> int:
        return 0

    def __len__(self) -> int:
        return len(self.index)

    def search(self, queries_BD: npt.NDArray[Any], k: int) -> tuple[Vectors, Ids]:
        return self.index.search(queries_BD, k)

    def over_fetch(self, k: int) -> int:
        return self.index.over_fetch(k)

    def missing(self, ids: Iterable[int]) -> Ids:
        return self.index.missing(ids)

    def put(self, ids: Ids, keys: Vectors) -> None:
        if len(self.index) == 0:
            self.index = build_index(self.index.dim, self.index.spec, ids, keys)
        else:
            self.index.add(ids, keys)

    def remove(self, ids: Iterable[int]) -> None:
        self.index.remove(ids)

    def advance(self, seq: int) -> None:
        self.applied_seq = seq

    def take(self, fit: IndexFit | None) -> None:
        """Read as many lists, and scores as many candidates, as was found best for an index like this one."""
        if fit is not None and (fit.spec, fit.lists) == (self.index.spec, self.index.lists):
            self.index.lists_read, self.recall = fit.lists_read, fit.recall
            if fit.spare is not None:
                self.index.spare = fit.spare

    def has_outgrown(self, index_spec: str) -> bool:
        """Say whether the index is still exact although another kind is due: half its keys would do to train that."""
        half = len(self.index) // 2
        due = parsed(default_spec(half, self.index.dim) if index_spec == AUTO_SPEC else index_spec)
        return self.index.spec == FLAT_SPEC and due is not None and due.lists > 0 and due.train_min <= half


def require_spec(dim: int, spec: str) -> None:
    """Raise `IndexInvariant` where a keyset of this width can't have this spec."""
    if collection_of(spec) is None:
        KeyIndex(dim, spec)


def build_index(dim: int, spec: str, ids: Ids, keys: Vectors) -> KeyIndex:
    """Build an index of all these keys. Where they are too few to train its spec, the index is exact."""
    index = KeyIndex(dim, spec)
    if len(ids):
        try:
            index.add(ids, keys)
        except IndexInvariant:
            if spec == FLAT_SPEC:
                raise
            index = KeyIndex(dim, FLAT_SPEC)
            index.add(ids, keys)
    return index


def build_all(
    session: Session, keyset: KeysetHead, on_keys: OnKeys | None = None, goal: float = RECALL
) -> InProcess:
    """Build the index from the database alone, a batch of keys at a time, and fits it to them.

    Lookups are to find this share, `goal`, of the nearest keys.

    Once the index is trained, `on_keys` is called with the number of keys added and that of all keys.
    """
    head = audit.head_seq(
        session
    )  # read before the keys: what is committed in between is applied again later
    num_keys = counting.num_indexed_keys(session, keyset.keyset_id)
    index, queries = _trained(session, keyset, num_keys)
    nearest, report = Nearest(queries), on_keys or (lambda done, total: None)
    report(0, num_keys)
    for ids, keys in indexed_keys(session, keyset.keyset_id, keyset.dim):
        index.add(ids, keys)
        nearest.see(ids, keys)
        report(len(index), max(num_keys, len(index)))
    return InProcess(index, head, fit_lists(index, nearest, goal) if index.lists else None)


def _trained(session: Session, keyset: KeysetHead, num_keys: int) -> tuple[KeyIndex, Vectors]:
    """Give an empty index, trained for all keys of the keyset, and queries to fit it with.

    Where the keys are too few for its spec, it is exact and needs none.
    """
    is_auto, none = keyset.index_spec == AUTO_SPEC, np.empty((0, keyset.dim), np.float32)
    index = KeyIndex(keyset.dim, default_spec(num_keys, keyset.dim) if is_auto else keyset.index_spec)
    if not index.lists:
        return index, none
    sample = keysets.sample_keys(session, keyset.keyset_id, keyset.dim, index.train_size, num_keys)
    if len(sample) < index.train_min:
        return KeyIndex(keyset.dim, FLAT_SPEC), none
    if is_auto:
        index = KeyIndex(keyset.dim, fitting_spec(sample, num_keys))
    held_out, trained_on = parted(sample, len(sample) - index.train_min)
    index.train(trained_on)
    return index, moved(held_out)
