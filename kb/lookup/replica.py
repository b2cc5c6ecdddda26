"""Replica: this process's copy of one keyset's index, which follows the change log.

Catching up takes from a change only which facts it touched: the live keys of these are read from the database, and
the index is made to hold exactly those. So a change may be applied twice, or late.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psycopg
from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.errors import IndexInvariant, SnapshotRefused
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import indexed_keys
from colmlm.kb.keys.keysets import AUTO_SPEC, Ids, Vectors
from colmlm.kb.keys.records import RECALL, IndexFit, KeysetHead, KeysetRecord
from colmlm.kb.log import audit
from colmlm.kb.lookup.added import AddedKeys
from colmlm.kb.lookup.fitting import Nearest, fit_lists, fitting_spec, moved, parted
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.specs import FLAT_SPEC, default_spec, parsed
from colmlm.kb.lookup.touched import Keys, renewed, touched
from colmlm.kb.store.database import connection_of
from colmlm.kb.tables import ChangeRow

OnKeys = Callable[[int, int], None]
AnyKeyset = KeysetHead | KeysetRecord


@dataclass(slots=True)
class Replica:
    """The index of `keyset_id` with every change up to `applied_seq` applied, and perhaps later ones.

    `recall` is the share of nearest keys that it found when it was fitted to its keys; None where that is not known.
    """

    keyset_id: int
    checkpoint_id: str
    dim: int
    index: KeyIndex
    applied_seq: int
    recall: float | None = None
    added: AddedKeys = field(default_factory=AddedKeys)
    _follow: threading.Lock = field(default_factory=threading.Lock)

    def catch_up(self, connection: psycopg.Connection, wait_seconds: float | None = None) -> int:
        """Applies every change committed by now and gives the seq reached. Threads may call it, and search meanwhile.

        It waits for another thread that is catching up, by default to its end; after `wait_seconds` it gives up and
        applies nothing.
        """
        if not self._follow.acquire(timeout=-1 if wait_seconds is None else wait_seconds):
            return self.applied_seq
        try:
            # The head is read before the keys: a change committed in between is newer than `head` and is applied again
            # next time.
            found = touched(connection, self.keyset_id, self.applied_seq)
            for keys in renewed(connection, self.keyset_id, found):
                self._renew(keys, found.head)
            self.applied_seq = found.head
            return self.applied_seq
        finally:
            self._follow.release()

    @property
    def fit(self) -> IndexFit:
        return IndexFit(self.index.spec, self.index.lists, self.index.lists_read, self.recall)

    def take(self, fit: IndexFit | None) -> None:
        """Reads as many lists as was found best for an index like this one."""
        if fit is not None and (fit.spec, fit.lists) == (self.index.spec, self.index.lists):
            self.index.lists_read, self.recall = fit.lists_read, fit.recall

    def has_outgrown(self, index_spec: str) -> bool:
        """Says whether the index is still exact although another kind is due: half its keys would do to train that."""
        half = len(self.index) // 2
        due = parsed(default_spec(half, self.dim) if index_spec == AUTO_SPEC else index_spec)
        return self.index.spec == FLAT_SPEC and due is not None and due.lists > 0 and due.train_min <= half

    def _renew(self, keys: Keys, head: int) -> None:
        """Makes the index hold, of these keys, exactly those that are given. What is added, is so by change `head`."""
        self.index.remove([key_id for key_id, key in keys.items() if key is None])
        new = self.index.missing([key_id for key_id, key in keys.items() if key is not None])
        if len(new):
            self.added.note(head, new.tolist())  # first, so that it holds also where adding is broken off
            self._add(new, keysets.decode([keys[key_id] for key_id in new.tolist()], self.dim))  # type: ignore[misc]

    def _add(self, ids: Ids, keys: Vectors) -> None:
        if len(self.index) == 0:
            self.index = build(self.dim, self.index.spec, ids, keys)
        else:
            self.index.add(ids, keys)


def build(dim: int, spec: str, ids: Ids, keys: Vectors) -> KeyIndex:
    """Builds an index of all these keys. Where they are too few to train its spec, the index is exact."""
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


def rebuild(
    session: Session, keyset: AnyKeyset, on_keys: OnKeys | None = None, goal: float = RECALL
) -> Replica:
    """Builds the replica from the database alone, a batch of keys at a time, and fits it to them.

    Lookups are to find this share, `goal`, of the nearest keys.

    Once the index is trained, `on_keys` is called with the number of keys added and that of all keys.
    """
    head = audit.head_seq(session)  # read before the keys, as in catch_up
    num_keys = keysets.num_indexed_keys(session, keyset.keyset_id)
    index, queries = _trained(session, keyset, num_keys)
    nearest, report = Nearest(queries), on_keys or (lambda done, total: None)
    report(0, num_keys)
    for ids, keys in indexed_keys(session, keyset.keyset_id, keyset.dim):
        index.add(ids, keys)
        nearest.see(ids, keys)
        report(len(index), max(num_keys, len(index)))
    recall = fit_lists(index, nearest, goal) if index.lists else None
    return Replica(keyset.keyset_id, keyset.checkpoint_id, keyset.dim, index, head, recall)


def _trained(session: Session, keyset: AnyKeyset, num_keys: int) -> tuple[KeyIndex, Vectors]:
    """Gives an empty index, trained for all keys of the keyset, and queries to fit it with.

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


def open_replica(
    session: Session, keyset: AnyKeyset, directory: Path, on_keys: OnKeys | None = None
) -> Replica:
    """Opens the replica from the keyset's snapshot, or rebuilds it where that is refused, and catches up."""
    try:
        replica = load_replica(session, keyset, directory)
    except SnapshotRefused:
        replica = rebuild(session, keyset, on_keys)
    replica.catch_up(connection_of(session))
    return replica


def load_replica(session: Session, keyset: AnyKeyset, directory: Path) -> Replica:
    """Loads the replica from the keyset's snapshot and does not catch up. Raises `SnapshotRefused` on any doubt."""
    directory = snapshots_of(session, directory)
    index, applied_seq = KeyIndex.load(directory, keyset_id=keyset.keyset_id, dim=keyset.dim)
    _require_same_history(session, directory, keyset.keyset_id, applied_seq)
    replica = Replica(keyset.keyset_id, keyset.checkpoint_id, keyset.dim, index, applied_seq)
    replica.take(keyset.index_fit)
    return replica


def snapshots_of(session: Session, directory: Path) -> Path:
    """Gives the directory of this database's snapshots; an index directory may serve several databases in turn."""
    return directory / audit.database_id(session)


def save(session: Session, replica: Replica, directory: Path) -> None:
    """Writes the replica's snapshot. It must have caught up, or a process could bring back what another has removed."""
    directory = snapshots_of(session, directory)
    with replica._follow:
        replica.index.save(directory, keyset_id=replica.keyset_id, applied_seq=replica.applied_seq)
        _history_file(directory, replica.keyset_id).write_text(
            json.dumps({"seq": replica.applied_seq, "hash": _hash_at(session, replica.applied_seq)})
        )
    keysets.note_snapshot(session, replica.keyset_id, replica.applied_seq)
    keysets.note_fit(session, replica.keyset_id, replica.fit)


def _require_same_history(session: Session, directory: Path, keyset_id: int, applied_seq: int) -> None:
    """Refuses a snapshot with changes that this database never had, as it may have been restored from a backup."""
    noted = None
    with suppress(OSError, ValueError):
        noted = json.loads(_history_file(directory, keyset_id).read_text())
    if noted != {"seq": applied_seq, "hash": _hash_at(session, applied_seq)}:
        raise SnapshotRefused(
            keyset_id=keyset_id, cause=f"its change {applied_seq} is not in this database's log"
        )


def _history_file(directory: Path, keyset_id: int) -> Path:
    return directory / f"keyset-{keyset_id}.history"


def _hash_at(session: Session, seq: int) -> str:
    return session.scalar(select(ChangeRow.hash).where(ChangeRow.seq == seq)) or audit.GENESIS
