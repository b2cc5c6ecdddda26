"""Replica: the candidates of one keyset in this process, and how they follow the change log.

Catching up takes from a change only which facts it touched. The live keys of these facts are read from the database,
and the candidates are made to hold exactly those. So a change may be applied twice, or late.
"""

from __future__ import annotations

import fcntl
import json
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Unpack

import numpy as np
import numpy.typing as npt
import psycopg
from sqlalchemy.orm import Session

from colmlm.kb.errors import KBError, SharedSnapshotsUnavailable, SnapshotRefused
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.records import RECALL, IndexFit, KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup.device import DeviceCandidates, choose_device, read_to_device
from colmlm.kb.lookup.in_process import (
    MOST_APART,
    CorporaCandidates,
    CorporaKeys,
    FaissCandidates,
    OnKeys,
    build_all,
)
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.options import LookupOptions, limit_corpora
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.lookup.remote import (
    CollectionCandidates,
    attach_collection,
    collection_of_keyset,
    hand_on_changes,
    write_all_keys,
)
from colmlm.kb.lookup.shared import (
    forget_snapshots,
    may_hold_erased_keys,
    noted_snapshots,
    publish_snapshot,
)
from colmlm.kb.lookup.snapshot_files import history_file, locked_directory, note_history
from colmlm.kb.lookup.specs import TORCH_SPEC
from colmlm.kb.lookup.touched import Keys, read_touched_keys, renew_touched_keys
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import wait_for_turn

# The keys that an index was given lately, so that a search from before need not be repeated for a few.

KEPT = 256  # ids; what more were given is searched for


class AddedKeys:
    """The ids of the keys added last to an index, with the changes that added them. One thread notes, others read."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, int], ...] = ()  # change and key
        self._forgotten = 0  # no key that a change past this one added is missing from the last

    def note(self, seq: int, key_ids: Sequence[int]) -> None:
        """Note that change `seq` adds these keys."""
        last = (*self._last, *((seq, key_id) for key_id in key_ids))
        if len(last) > KEPT:
            self._forgotten = seq  # before they are dropped, for whoever reads both meanwhile
            last = ()
        self._last = last

    def since(self, seq: int) -> list[int] | None:
        """Give the ids of the keys that changes after `seq` added; None if this record no longer keeps all of them."""
        last = self._last
        return None if self._forgotten > seq else [key_id for added, key_id in last if added > seq]


_log = logging.getLogger(__name__)
MOST_CORPORA = 8  # sets of corpora whose keys are held


@dataclass(slots=True)
class Replica:
    """The candidates of `keyset_id`, with the keys that they were given last; `is_new` where they were just built."""

    keyset_id: int
    checkpoint_id: str
    dim: int
    candidates: CandidateKeys
    added: AddedKeys = field(default_factory=AddedKeys)
    is_new: bool = False
    _follow: threading.Lock = field(default_factory=threading.Lock)
    most_apart: int = MOST_APART
    _corpora: dict[tuple[str, ...], CorporaKeys] = field(default_factory=dict)

    @property
    def applied_seq(self) -> int:
        """The last change that is applied, perhaps with later ones."""
        return self.candidates.applied_seq

    def candidates_of(
        self, corpora: tuple[str, ...], ask: Callable[[Callable[[psycopg.Connection], None]], None]
    ) -> CandidateSearch:
        """Give the search among the keys of these corpora (none: all). `ask` calls a function with a connection.

        A collection elsewhere proposes keys of all corpora. The SELECT that decides passes over the others.
        """
        whole = self.candidates
        if not corpora or not isinstance(whole, FaissCandidates | DeviceCandidates):
            return whole
        if (keys := self._corpora.get(corpora)) is None:
            keys = CorporaKeys(self.keyset_id, self.dim, corpora, self.most_apart)
            self._corpora = dict([*self._corpora.items(), (corpora, keys)][-MOST_CORPORA:])
        if keys.is_behind:
            ask(partial(keys.read_keys, whole))
        return CorporaCandidates(whole, keys)

    def catch_up(self, connection: psycopg.Connection, wait_seconds: float | None = None) -> int:
        """Apply every change committed by now and give the seq reached. Threads may call it, and search meanwhile.

        It waits for another thread that is catching up, by default to its end; after `wait_seconds` it gives up and
        applies nothing.
        """
        if not self._follow.acquire(timeout=-1 if wait_seconds is None else wait_seconds):
            return self.applied_seq
        try:
            # The head is read before the keys: a change committed in between is newer than `head` and is applied again
            # next time.
            found = read_touched_keys(connection, self.keyset_id, self.applied_seq)
            for keys in renew_touched_keys(connection, self.keyset_id, found):
                self._renew(keys, found.head)
            self.candidates.advance(found.head)
            return self.applied_seq
        finally:
            self._follow.release()

    def _renew(self, keys: Keys, head: int) -> None:
        """Make the candidates hold, of these ids, exactly the keys that are not None. Change `head` adds them."""
        self.candidates.remove([key_id for key_id, key in keys.items() if key is None])
        new = self.candidates.missing([key_id for key_id, key in keys.items() if key is not None])
        if len(new):
            self.added.note(head, new.tolist())  # first, so that it holds also where adding is broken off
            self.candidates.put(new, keysets.decode_keys([keys[key_id] for key_id in new.tolist()], self.dim))  # type: ignore[misc]
        for one in self._corpora.values():
            one.note(
                [i for i, key in keys.items() if key is None],
                [i for i, key in keys.items() if key is not None],
            )


def rebuild_replica(
    session: Session,
    keyset: KeysetHead,
    settings: Settings,
    on_keys: OnKeys | None = None,
    goal: float = RECALL,
) -> Replica:
    """Build the replica of a keyset, which holds its keys for this process to search, from the database alone.

    Its index is fitted so that lookups find the share `goal`, in [0, 1], of the keys nearest to a query. Where the
    keyset names a collection elsewhere, that is mended or filled. Where torch searches it, its keys are read.
    """
    if (there := collection_of_keyset(session, keyset, settings.milvus)) is not None:
        return _replica(keyset, write_all_keys(session, keyset, there, on_keys))
    return read_replica(session, keyset, settings, on_keys) or replace(
        _replica(keyset, build_all(session, keyset, on_keys, goal)), is_new=True
    )


def read_replica(
    session: Session, keyset: KeysetHead, settings: Settings, on_keys: OnKeys | None = None
) -> Replica | None:
    """Open the replica of a keyset that torch searches, by reading its keys; None where something else searches it.

    Gives None also where the device turns out to have no room for the keys.
    """
    if (place := choose_device(session, keyset, settings)) is None:
        return None
    found = read_to_device(session, keyset, place, on_keys)
    return None if found.has_outgrown(keyset.index_spec) else _replica(keyset, found)


def _replica(keyset: KeysetHead, candidates: CandidateKeys) -> Replica:
    return Replica(keyset.keyset_id, keyset.checkpoint_id, keyset.dim, candidates)


def load_saved_replica(session: Session, keyset: KeysetHead, settings: Settings) -> Replica:
    """Load the replica from the keyset's snapshot, or open its collection elsewhere, without catching up.

    Raises `SnapshotRefused` or `CandidatesRefused` on any doubt.
    """
    if (there := collection_of_keyset(session, keyset, settings.milvus)) is not None:
        return _replica(keyset, attach_collection(session, there))
    if keyset.index_spec == TORCH_SPEC:
        raise SnapshotRefused(keyset_id=keyset.keyset_id, cause="torch reads its keys from the database")
    directory = snapshots_of(session, settings.index_directory)
    index, applied_seq = KeyIndex.load(directory, keyset_id=keyset.keyset_id, dim=keyset.dim)
    _require_same_history(session, directory, keyset.keyset_id, applied_seq)
    found = FaissCandidates(index, applied_seq)
    found.adopt_fit(keyset.index_fit)
    return _replica(keyset, found)


def snapshots_of(session: Session, directory: Path) -> Path:
    """Give the directory of this database's snapshots; an index directory may serve several databases in turn."""
    return directory / audit.database_id(session)


def save_replica(session: Session, replica: Replica, settings: Settings, *, share: bool = False) -> bool:
    """Write the replica's snapshot, and share it if that is due or with `share`. Bring a collection up to the log.

    Keys that torch searches get no snapshot, and a former one is removed, since it could hold erased keys.

    The replica must have caught up, or a process could bring back what another has removed. One that was just built is
    shared in any case. That the shared place is out of reach is raised only with `share`. Gives False if the snapshot
    could not be shared, also because facts were erased since.
    """
    is_shared = True
    if isinstance(replica.candidates, CollectionCandidates):
        hand_on_changes(session, replica.keyset_id, replica.candidates.collection)
    elif isinstance(replica.candidates, DeviceCandidates):
        _leave_no_snapshot(session, replica.keyset_id, settings, share=share)
    else:
        _save_snapshot(session, replica, snapshots_of(session, settings.index_directory))
        is_shared = _share(session, replica, settings, must=share)
    keysets.note_snapshot(session, replica.keyset_id, replica.applied_seq)
    keysets.note_fit(session, replica.keyset_id, replica.candidates.fit)
    return is_shared


def _save_snapshot(session: Session, replica: Replica, directory: Path) -> None:
    assert isinstance(replica.candidates, FaissCandidates)
    with replica._follow:
        index, seq = replica.candidates.index, replica.applied_seq
        index.save(directory, keyset_id=replica.keyset_id, applied_seq=seq)
        note_history(directory, replica.keyset_id, seq, audit.change_hash_or_genesis(session, seq))


def note_unsaved_index(session: Session, keyset_id: int) -> None:
    """Record the log's head as the state of a keyset that torch searches, without reading keys: it has no snapshot."""
    keysets.note_snapshot(session, keyset_id, audit.head_seq(session))
    keysets.note_fit(session, keyset_id, IndexFit(TORCH_SPEC, 0, 0))


def _leave_no_snapshot(session: Session, keyset_id: int, settings: Settings, *, share: bool) -> None:
    directory = snapshots_of(session, settings.index_directory)
    if directory.exists():
        with locked_directory(directory, fcntl.LOCK_EX):
            for file in (
                *directory.glob(f"keyset-{keyset_id}.*"),
                *directory.glob(f"keyset-{keyset_id}-seq-*"),
            ):
                file.unlink(missing_ok=True)
    if share and (there := noted_snapshots(session).get(keyset_id)) is not None:
        wait_for_turn(session, keyset_id)
        if may_hold_erased_keys(session, there):
            forget_snapshots(session, [keyset_id])


def _share(session: Session, replica: Replica, settings: Settings, *, must: bool) -> bool:
    # Before the keyset's row is written to, which others would wait for as long as the copying takes.
    anyway = must or replica.is_new
    try:
        is_shared = publish_snapshot(
            session, replica.keyset_id, replica.dim, settings, anyway=anyway, must=must
        )
    except SharedSnapshotsUnavailable as error:
        if must:
            raise
        _log.warning("the snapshot of keyset %d was not shared: %s", replica.keyset_id, error)
        return False
    replica.is_new = replica.is_new and not is_shared
    return is_shared


def _require_same_history(session: Session, directory: Path, keyset_id: int, applied_seq: int) -> None:
    """Refuse a snapshot with changes that this database never had, as it may have been restored from a backup."""
    noted = None
    with suppress(OSError, ValueError):
        noted = json.loads(history_file(directory, keyset_id).read_text())
    if noted != {"seq": applied_seq, "hash": audit.change_hash_or_genesis(session, applied_seq)}:
        raise SnapshotRefused(
            keyset_id=keyset_id, cause=f"its change {applied_seq} is not in this database's log"
        )


# Lookups of several callers by key, found together: one search and one SELECT for all that want the same of
# it.
#
# Each gets what it would get alone. The SELECT begins after all of them asked, so a delete that was committed
# before any of them asked holds for it.

Found = list[Lookup] | KBError


@dataclass(frozen=True, slots=True, eq=False)
class KeyLookup:
    """One caller's queries [B, d] for a lookup by key among the current facts."""

    queries_BD: Vectors
    checkpoint_id: str
    options: LookupOptions

    def __post_init__(self) -> None:
        corpora = limit_corpora(self.options.get("corpora", ()))
        object.__setattr__(self, "options", LookupOptions(**{**self.options, "corpora": corpora}))

    @property
    def search_identity(self) -> tuple[object, ...]:
        """Give the checkpoint, width and options, which lookups must have in common to be answered by one search."""
        return self.checkpoint_id, self.queries_BD.shape[1], *sorted(self.options.items())


class FindsByKey(Protocol):
    """The part of `Lookups` that finds by key."""

    def find(
        self, queries_BD: Vectors, *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]: ...


def find_together(lookups: FindsByKey, asked: Sequence[KeyLookup]) -> list[Found]:
    """Answer the lookups of several callers; give for each its results, or the error that refuses it."""
    together: dict[object, list[int]] = {}
    for i, one in enumerate(asked):
        together.setdefault(one.search_identity, []).append(i)
    found: dict[int, Found] = {}
    for alike in together.values():
        found.update(zip(alike, _find_alike(lookups, [asked[i] for i in alike]), strict=True))
    return [found[i] for i in range(len(asked))]


def _find_alike(lookups: FindsByKey, alike: list[KeyLookup]) -> list[Found]:
    sizes = [len(one.queries_BD) for one in alike]
    first, queries_BD = alike[0], np.concatenate([one.queries_BD for one in alike])
    try:
        found = lookups.find(queries_BD, checkpoint_id=first.checkpoint_id, **first.options)
    except KBError as error:
        if len(alike) == 1:
            return [error]
        # One of them spoils no other.
        return [result for one in alike for result in _find_alike(lookups, [one])]
    ends = np.cumsum(sizes).tolist()
    return [found[end - size : end] for size, end in zip(sizes, ends, strict=True)]


# Candidates: the seam between lookups and what searches keys, be it in this process or on a server elsewhere.
#
# Who implements it only proposes keys near a query. Which of them are of live facts, and at what exact
# scores, the database decides afterwards. So it may lag and propose too much; what it leaves out is lost for
# an answer.


class CandidateSearch(Protocol):
    """A search that proposes keys near a query."""

    @property
    def is_estimating(self) -> bool:
        """Say whether it ranks keys by estimates of their scores."""

    def search(self, queries_BD: npt.NDArray[Any], k: int) -> tuple[Vectors, Ids]:
        """Find the k keys of largest inner product for each query: scores [B, k] and ids [B, k], best first.

        Where it holds fewer the rest has id -1 and score -inf. Threads may search while one puts, removes or advances.
        """

    def over_fetch(self, k: int) -> int:
        """Give how many keys to ask for so that the k best are among them after exact scoring and a few deletions."""


class CandidateKeys(CandidateSearch, Protocol):
    """The keys of one keyset by id, with every change up to `applied_seq` applied, and perhaps later ones."""

    applied_seq: int

    @property
    def is_lost(self) -> bool:
        """Say whether it answers nothing more and has to be opened again."""

    @property
    def ids(self) -> Ids:
        """Give the ids that it holds, ascending and each once."""

    @property
    def fit(self) -> IndexFit:
        """The fit of its index to the keys."""

    @property
    def num_twice(self) -> int:
        """Count the keys that it holds more than once."""

    def __len__(self) -> int: ...

    def missing(self, ids: Iterable[int]) -> Ids:
        """Give those of these ids that a search may not find, ascending and each once."""

    def put(self, ids: Ids, keys: Vectors) -> None:
        """Add keys [n, d] under ids [n] that are `missing`."""

    def remove(self, ids: Iterable[int]) -> None:
        """Make it hold none of these ids; those that it does not hold are ignored."""

    def advance(self, seq: int) -> None:
        """Note that everything up to change `seq` was put and removed."""

    def adopt_fit(self, fit: IndexFit | None) -> None:
        """Search as this fit says, which another process may have measured on an index like this one."""

    def has_outgrown(self, index_spec: str) -> bool:
        """Say whether another kind of index is due for its number of keys, in a keyset with this spec."""
