"""Remote: candidates from a collection elsewhere, with a tail: an exact index here of what was added since its mark.

A search sees, for sure, what the collection had some seconds ago. So the tail keeps what was added after a mark that
is older than that, and both are searched, the tail first: what leaves it meanwhile is in the collection by then. What
was deleted may be found there for a while; the `SELECT` of a lookup drops it.

After every search the collection is asked whether it still has that mark. Where it has not, it was wiped, written anew
or put back to an older state: this object is lost then, and answers nothing more until it is opened anew.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.records import IndexFit
from colmlm.kb.lookup.collection import Collection, CollectionMark
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.present import distinct

# What was confirmed so long ago is seen by every search; Milvus grants 5 seconds (`common.gracefulTime`).
SETTLED_SECONDS = 10.0
LOOK_SECONDS = 1.0  # between two looks for a newer mark
MOST_HELD = 250_000  # keys of a tail
_SPARE = 4  # keys that a search fetches in addition, as from an exact index


@dataclass(slots=True)
class Remote:
    """The keys of a collection as of `mark`, and the changes since, up to `applied_seq`."""

    collection: Collection
    mark: CollectionMark
    age: float  # seconds since that was set
    clock: Callable[[], float] = time.monotonic
    most_held: int = MOST_HELD
    applied_seq: int = field(init=False)
    is_lost: bool = field(default=False, init=False)
    _tail: KeyIndex = field(init=False)
    _added: dict[int, int | None] = field(
        default_factory=dict, init=False
    )  # by which change; None: by the next
    _removed: dict[int, int | None] = field(default_factory=dict, init=False)
    _settled: int = field(init=False)  # every search sees the collection as of this change at least
    _seen: deque[tuple[int, float]] = field(
        default_factory=deque, init=False
    )  # later marks, and when they were seen
    _strong_until: float = field(init=False)
    _look_from: float = field(default=0.0, init=False)
    _changing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.applied_seq = self._settled = self.mark.seq
        self._tail = KeyIndex(self.collection.dim)
        # Until the mark is old, searches wait for all that was written before them.
        self._strong_until = self.clock() + SETTLED_SECONDS - max(0.0, self.age)

    @property
    def ids(self) -> Ids:
        """Gives the ids as of now, which takes a query for some thousands of them."""
        there = np.setdiff1d(
            self.collection.ids(), np.array(list(self._removed), dtype=np.int64), assume_unique=True
        )
        return distinct(np.concatenate([there, self._tail.ids]))

    @property
    def fit(self) -> IndexFit:
        return IndexFit(fitted(self.collection), 0, 0)

    @property
    def is_estimating(self) -> bool:
        return False

    @property
    def is_ahead(self) -> bool:
        """Says whether it holds changes that the collection has not got, as far as it saw."""
        with self._changing:
            last = self._seen[-1][0] if self._seen else self._settled
            changes = (*self._added.values(), *self._removed.values())
        return any(by is None or by > last for by in changes)

    @property
    def num_twice(self) -> int:
        return self.collection.count(strong=True) - len(self.collection.ids())

    def __len__(self) -> int:
        return len(self.ids)

    def over_fetch(self, k: int) -> int:
        return k + _SPARE

    def search(self, queries_BD: npt.NDArray[Any], k: int) -> tuple[Vectors, Ids]:
        self._require()
        strong, settled = self.clock() < self._strong_until, self._settled
        near = self._tail.search(queries_BD, k)
        found = self.collection.search(queries_BD, k, strong=strong)
        # After the search, or one of what was wiped in between would be taken for an answer; and not beside it: sent at
        # once they took 40 ms where one after the other takes 3.
        if not self.collection.has_mark(settled, self.mark.fill, strong=strong):
            self._look_again(settled)
        return merged(found, near, k)

    def missing(self, ids: Iterable[int]) -> Ids:
        return self._tail.missing(ids)

    def put(self, ids: Ids, keys: Vectors) -> None:
        self._require()
        if len(self._tail) + len(ids) > self.most_held:
            self.is_lost = True
            raise CandidatesUnavailable(
                self.collection.where,
                f"it lacks more than {self.most_held} keys, and another process writes them there",
            )
        with self._changing:
            self._tail.add(ids, keys)
            for id_ in ids.tolist():
                self._removed.pop(id_, None)
                self._added[id_] = None

    def remove(self, ids: Iterable[int]) -> None:
        wanted = list(ids)
        with self._changing:
            self._tail.remove(wanted)
            for id_ in wanted:
                self._added.pop(id_, None)
                self._removed[id_] = None

    def advance(self, seq: int) -> None:
        """Notes that everything up to change `seq` was put or removed here, and looks at times for a newer mark."""
        self._require()
        with self._changing:
            for changes in (self._added, self._removed):
                changes.update((id_, seq) for id_, by in changes.items() if by is None)
            self.applied_seq = seq
        if (self._added or self._removed) and self.clock() >= self._look_from:
            self._look_from = self.clock() + LOOK_SECONDS
            self._see(self.collection.mark(strong=False))

    def take(self, fit: IndexFit | None) -> None:
        pass

    def has_outgrown(self, index_spec: str) -> bool:
        return False

    def _see(self, mark: CollectionMark | None) -> None:
        """Lets go of what a mark of so long ago says is in the collection."""
        now = self.clock()
        with self._changing:
            if mark is not None and mark.fill == self.mark.fill:
                last = self._seen[-1][0] if self._seen else self._settled
                if mark.seq > last:
                    self._seen.append((mark.seq, now))
            while self._seen and self._seen[0][1] <= now - SETTLED_SECONDS:
                self._settled, _ = self._seen.popleft()
            for changes in (self._added, self._removed):
                done = [id_ for id_, by in changes.items() if by is not None and by <= self._settled]
                for id_ in done:
                    del changes[id_]
                if changes is self._added:
                    self._tail.remove(done)

    def _look_again(self, settled: int) -> None:
        """Raises unless the collection has a mark of this fill from change `settled` on after all."""
        mark = self.collection.mark(strong=True)
        if mark is not None and mark.fill == self.mark.fill and mark.seq >= settled:
            return
        self.is_lost = True
        if mark is None:
            raise CandidatesRefused(self.collection.where, "it has no mark any more, so its keys are gone")
        raise CandidatesUnavailable(
            self.collection.where, f"it was filled anew, or put back to change {mark.seq} from {settled} on"
        )

    def _require(self) -> None:
        if self.is_lost:
            raise CandidatesUnavailable(self.collection.where, "it was lost sight of, and is opened anew")


def fitted(there: Collection) -> str:
    """Gives what the database keeps of where a keyset's keys are."""
    return f"milvus:{there.name} at {there.address.uri}"


def filled_at(fit: str) -> str | None:
    """Gives the address in that; None where there is none, as earlier releases did not keep it."""
    return fit.partition(" at ")[2] or None


def merged(one: tuple[Vectors, Ids], other: tuple[Vectors, Ids], k: int) -> tuple[Vectors, Ids]:
    """Gives the k best of two searches [B, k], each id once where there are enough."""
    D, I = np.concatenate([one[0], other[0]], axis=1), np.concatenate([one[1], other[1]], axis=1)  # noqa: E741
    if not (other[1] >= 0).any():
        return one
    for b in range(len(I)):
        _, first = np.unique(I[b], return_index=True)
        again = np.ones(len(I[b]), dtype=bool)
        again[first] = False
        D[b, again] = -np.inf
    order = np.argsort(-D, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(D, order, axis=1), np.take_along_axis(I, order, axis=1)
