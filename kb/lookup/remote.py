"""Remote: candidates from a Milvus collection, with a tail: an exact index in this process of keys added since a mark.

A search of the collection surely sees only what it had some seconds ago. So the tail keeps the keys added after a mark
that is older than that. Both are searched, the tail first: a key that leaves it is in the collection by then. Deleted
keys may be found in the collection for a while, and the `SELECT` of a lookup drops them.

After every search the collection is asked whether it still has that mark. If not, it was wiped, filled again or reset
to an older state. The candidates are lost then, and answer nothing until the collection is opened again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesRefused, CandidatesUnavailable, count_of
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import indexed_ids
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.records import IndexFit, KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.collection import AT_ONCE, Collection, CollectionMark
from colmlm.kb.lookup.in_process import OnKeys
from colmlm.kb.lookup.index import KeyIndex, distinct
from colmlm.kb.lookup.specs import collection_of
from colmlm.kb.lookup.touched import Keys, read_touched_keys, renew_touched_keys
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.settings import MilvusAddress
from colmlm.kb.store.waits import has_turn, wait_for_turn
from colmlm.kb.tables import FactKeyRow

# What was confirmed so long ago is seen by every search; Milvus grants 5 seconds (`common.gracefulTime`).
SETTLED_SECONDS = 10.0
LOOK_SECONDS = 1.0  # between two looks for a newer mark
MOST_HELD = 250_000  # keys of a tail
_SPARE = 4  # keys that a search fetches in addition, as from an exact index


@dataclass(slots=True)
class CollectionCandidates:
    """The keys of a Milvus collection as of `mark`, with later changes in memory, up to `applied_seq`."""

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
        """The ids of all keys now. Reading them takes a query for every few thousand."""
        there = np.setdiff1d(
            self.collection.ids(), np.array(list(self._removed), dtype=np.int64), assume_unique=True
        )
        return distinct(np.concatenate([there, self._tail.ids]))

    @property
    def fit(self) -> IndexFit:
        return IndexFit(collection_note(self.collection), 0, 0)

    @property
    def is_estimating(self) -> bool:
        return False

    @property
    def is_ahead(self) -> bool:
        """Say whether this process has changes that are past the newest mark it has seen."""
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
        self._require_not_lost()
        strong, settled = self.clock() < self._strong_until, self._settled
        near = self._tail.search(queries_BD, k)
        found = self.collection.search(queries_BD, k, strong=strong)
        # After the search, or one of what was wiped in between would be taken for an answer; and not beside it: sent at
        # once they took 40 ms where one after the other takes 3.
        if not self.collection.has_mark(settled, self.mark.fill, strong=strong):
            self._require_mark(settled)
        return merge_hits(found, near, k)

    def missing(self, ids: Iterable[int]) -> Ids:
        return self._tail.missing(ids)

    def put(self, ids: Ids, keys: Vectors) -> None:
        self._require_not_lost()
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
        """Note that everything up to change `seq` was put or removed here, and now and then read the newest mark."""
        self._require_not_lost()
        with self._changing:
            for changes in (self._added, self._removed):
                changes.update((id_, seq) for id_, by in changes.items() if by is None)
            self.applied_seq = seq
        if (self._added or self._removed) and self.clock() >= self._look_from:
            self._look_from = self.clock() + LOOK_SECONDS
            self._apply_mark(self.collection.mark(strong=False))

    def adopt_fit(self, fit: IndexFit | None) -> None:
        pass

    def has_outgrown(self, index_spec: str) -> bool:
        return False

    def _apply_mark(self, mark: CollectionMark | None) -> None:
        """Note this mark; drop from memory the changes that the collection has by a mark seen `SETTLED_SECONDS` ago."""
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

    def _require_mark(self, settled: int) -> None:
        """Raise, and count as lost, unless a strong read finds a mark of this fill at change `settled` or later."""
        mark = self.collection.mark(strong=True)
        if mark is not None and mark.fill == self.mark.fill and mark.seq >= settled:
            return
        self.is_lost = True
        if mark is None:
            raise CandidatesRefused(self.collection.where, "its mark is missing, so its keys are gone")
        raise CandidatesUnavailable(
            self.collection.where, f"it was filled again, or reset from change {settled} to {mark.seq}"
        )

    def _require_not_lost(self) -> None:
        if self.is_lost:
            raise CandidatesUnavailable(
                self.collection.where, "the connection was lost, and is being opened. Try again in a moment"
            )


def collection_note(there: Collection) -> str:
    """Give the text that the database stores as the fit of a keyset's collection: `milvus:NAME at ADDRESS`."""
    return f"milvus:{there.name} at {there.address.uri}"


def address_of_note(fit: str) -> str | None:
    """Read the address of Milvus from a text of `collection_note`; None where an earlier program stored none."""
    return fit.partition(" at ")[2] or None


def merge_hits(one: tuple[Vectors, Ids], other: tuple[Vectors, Ids], k: int) -> tuple[Vectors, Ids]:
    """Merge two searches [B, k] for the same queries into the k best, each id once where there are enough."""
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


# The writer of a collection elsewhere: writes while it is this process's turn, and asks before each call if
# it is.
#
# The turn is a lock of the database, which ends with the connection to it, and no process is told of that.
# What it read before may be wrong by then: another one has the turn, and facts were deleted, restored or
# erased.


@dataclass(frozen=True, slots=True)
class CollectionWriter:
    """Writes to a collection while its session's transaction has the turn (a lock). Methods raise if that is lost."""

    session: Session
    there: Collection

    def insert(self, ids: Ids, keys: Vectors) -> None:
        """Insert keys [n, d] under ids [n]. None of these ids may be in the collection yet."""
        for start in range(0, len(ids), AT_ONCE):
            self._require_turn()
            self.there.insert(ids[start : start + AT_ONCE], keys[start : start + AT_ONCE])

    def delete(self, ids: Sequence[int]) -> None:
        """Delete the keys of these ids; unknown ids are ignored."""
        for start in range(0, len(ids), AT_ONCE):
            self._require_turn()
            self.there.delete(ids[start : start + AT_ONCE])

    def set_mark(self, mark: CollectionMark) -> None:
        self._require_turn()
        self.there.set_mark(mark)

    def create(self) -> None:
        """Create the collection empty, in place of the former one."""
        self._require_turn()
        self.there.create()

    def drop(self) -> None:
        self._require_turn()
        self.there.drop()

    def _require_turn(self) -> None:
        self.session.execute(select(1))


# Writing: brings a collection elsewhere up to the log, fills it, and mends it, one process at a time
# (`CollectionWriter`).
#
# Whoever writes reads the mark first and goes on from there, so a writer that dies leaves nothing that the
# next one does not do again. Its turn ends with its connection to the database, so it asks for that before
# each call.


def collection_of_keyset(session: Session, keyset: KeysetHead, address: MilvusAddress) -> Collection | None:
    """Give the collection that this keyset names, without a request to Milvus; None where it names none."""
    if (name := collection_of(keyset.index_spec)) is None:
        return None
    owner = f"marks_of_base_{audit.database_id(session)}_keyset_{keyset.keyset_id}"
    return Collection(address, name, keyset.dim, owner)


def attach_collection(session: Session, there: Collection) -> CollectionCandidates:
    """Open the candidates of a collection as of its newest mark.

    Raises `CandidatesRefused` where the collection is missing or not this base's, or the log lacks the mark's change.
    """
    if not there.exists():
        raise CandidatesRefused(there.where, "it does not exist")
    mark = _trusted_mark(session, there)
    return CollectionCandidates(there, mark, age=_now(session) - mark.at)


def _trusted_mark(session: Session, there: Collection) -> CollectionMark:
    mark = there.mark(strong=True)
    if mark is None:
        raise CandidatesRefused(there.where, "it was not filled completely")
    if mark.log_hash != audit.change_hash_or_genesis(session, mark.seq):
        raise CandidatesRefused(there.where, f"its change {mark.seq} is not in this database's log")
    return mark


def hand_on_changes(session: Session, keyset_id: int, there: Collection) -> bool:
    """Write the changes since the mark to the collection, and a new mark; give False if another process is writing."""
    if not has_turn(session, keyset_id):
        return False
    there, connection = there.with_long_timeout(), connection_of(session)
    mark, writer = _trusted_mark(session, there), CollectionWriter(session, there)
    found = read_touched_keys(connection, keyset_id, mark.seq)
    has_changed = False
    for keys in renew_touched_keys(connection, keyset_id, found):
        has_changed |= _renew(writer, keys)
    if has_changed:
        _set_mark(writer, found.head, mark.fill)
    return True


def _renew(writer: CollectionWriter, keys: Keys) -> bool:
    """Make the collection hold, of these ids, exactly the keys that are not None; say whether there were any ids."""
    there = writer.there
    live = [key_id for key_id, key in keys.items() if key is not None]
    present = there.present(list(keys))
    writer.delete(sorted(present - set(live)))
    if new := [key_id for key_id in live if key_id not in present]:
        vectors = keysets.decode_keys([key for key_id in new if (key := keys[key_id]) is not None], there.dim)
        writer.insert(np.array(new, dtype=np.int64), vectors)
        _confirm(there, new)
    return bool(keys)


def _confirm(there: Collection, ids: list[int]) -> None:
    if lacking := set(ids) - there.present(ids):
        raise CandidatesUnavailable(
            there.where, f"it took {count_of(len(lacking), 'key')} and does not hold them"
        )


def write_all_keys(
    session: Session, keyset: KeysetHead, there: Collection, on_keys: OnKeys | None = None
) -> CollectionCandidates:
    """Make the collection hold exactly the keys of the database: mend it if it can be trusted, else fill it.

    While it is filled, lookups of other processes are refused.
    """
    wait_for_turn(session, keyset.keyset_id)
    head = audit.head_seq(session)  # read before the keys, as in catching up
    writer, mark, mends = CollectionWriter(session, there.with_long_timeout()), None, False
    try:
        if there.exists():
            there.load()
            mark = _trusted_mark(session, writer.there)
            mends = _mend(writer, keyset)
    except CandidatesRefused:
        there.exists()  # refused again where it is another's
    if not mends:
        _fill(writer, keyset, on_keys or (lambda done, total: None))
    # Anew also where nothing was written since: what was mended is seen by every search some seconds later.
    _set_mark(writer, head, mark.fill if mends and mark is not None else uuid.uuid4().hex)
    return attach_collection(session, there)


def _set_mark(writer: CollectionWriter, seq: int, fill: str) -> None:
    session = writer.session
    writer.set_mark(CollectionMark(seq, fill, audit.change_hash_or_genesis(session, seq), _now(session)))


def _now(session: Session) -> float:
    return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def compact_collection(session: Session, keyset_id: int, there: Collection, seconds: float) -> bool:
    """Bring the collection up to the log, and have Milvus rewrite what holds deleted keys; say whether it did in time.

    A writer that lost its connection may have inserted keys that were erased since. So ids are compared with those of
    the database before, and counted after. Raises `CandidatesRefused` where there are too many after.
    """
    wait_for_turn(session, keyset_id)
    there = there.with_long_timeout()
    hand_on_changes(session, keyset_id, there)
    held = there.ids()
    wanted = indexed_ids(session, keyset_id)
    CollectionWriter(session, there).delete(np.setdiff1d(held, wanted, assume_unique=True).tolist())
    is_compacted = there.compact(seconds)
    if more := there.count(strong=True) - len(np.intersect1d(held, wanted, assume_unique=True)):
        raise CandidatesRefused(there.where, f"it holds {count_of(more, 'key')} more than it should")
    return is_compacted


def is_filled(session: Session, there: Collection) -> bool:
    """Say whether this base filled the collection to the end. The collection must exist."""
    try:
        _trusted_mark(session, there)
    except CandidatesRefused:
        return False
    return True


def _mend(writer: CollectionWriter, keyset: KeysetHead) -> bool:
    """Insert the missing keys and delete the surplus ones; give False instead where keys are stored more than once."""
    there, session = writer.there, writer.session
    found = there.ids()
    if there.count(strong=True) != len(found):
        return False
    wanted = indexed_ids(session, keyset.keyset_id)
    writer.delete(np.setdiff1d(found, wanted, assume_unique=True).tolist())
    for ids in _put(writer, keyset, np.setdiff1d(wanted, found, assume_unique=True)):
        _confirm(there, ids)
    return True


def _put(writer: CollectionWriter, keyset: KeysetHead, wanted: Ids) -> Iterator[list[int]]:
    """Insert the keys of these ids in batches, each read just before it is written; yield the ids of each batch."""
    for start in range(0, len(wanted), AT_ONCE):
        rows = writer.session.execute(
            select(FactKeyRow.id, FactKeyRow.key).where(
                FactKeyRow.keyset_id == keyset.keyset_id,
                FactKeyRow.id == func.any(wanted[start : start + AT_ONCE].tolist()),
            )
        ).all()
        ids = [row.id for row in rows]
        writer.insert(
            np.array(ids, dtype=np.int64), keysets.decode_keys([row.key for row in rows], keyset.dim)
        )
        yield ids


def _fill(writer: CollectionWriter, keyset: KeysetHead, on_keys: OnKeys) -> None:
    there, wanted, done = writer.there, indexed_ids(writer.session, keyset.keyset_id), 0
    writer.create()
    on_keys(0, len(wanted))
    for ids in _put(writer, keyset, wanted):
        done += len(ids)
        on_keys(done, len(wanted))
    there.flush()
    if (found := there.count(strong=True)) != done:
        raise CandidatesUnavailable(
            there.where, f"{count_of(found, 'key', 'are')} in it, of {done:,} that it took"
        )
