"""Replica: what this process finds candidates with in one keyset, and follows the change log with.

Catching up takes from a change only which facts it touched: the live keys of these are read from the database, and
the candidates are made to hold exactly those. So a change may be applied twice, or late.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
from sqlalchemy.orm import Session

from colmlm.kb.errors import SharedSnapshotsUnavailable, SnapshotRefused
from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import RECALL, KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.lookup import sharing, writing
from colmlm.kb.lookup.candidates import CandidateKeys
from colmlm.kb.lookup.in_process import InProcess, OnKeys, build_all
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.lookup.remote import Remote
from colmlm.kb.lookup.snapshot_files import history_file, note_history
from colmlm.kb.lookup.touched import Keys, renewed, touched
from colmlm.kb.store.settings import Settings

# The keys that an index was given lately, so that a search from before need not be repeated for a few.

KEPT = 256  # ids; what more were given is searched for


class AddedKeys:
    """The last keys that were added to an index, by the changes that did. One thread notes, others ask meanwhile."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, int], ...] = ()  # change and key
        self._forgotten = 0  # no key that a change past this one added is missing from the last

    def note(self, seq: int, key_ids: Sequence[int]) -> None:
        """Notes what change `seq` adds."""
        last = (*self._last, *((seq, key_id) for key_id in key_ids))
        if len(last) > KEPT:
            self._forgotten = seq  # before they are dropped, for whoever reads both meanwhile
            last = ()
        self._last = last

    def since(self, seq: int) -> list[int] | None:
        """Gives the keys that changes past `seq` have added; None where that is not known any more."""
        last = self._last
        return None if self._forgotten > seq else [key_id for added, key_id in last if added > seq]


_log = logging.getLogger(__name__)


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

    @property
    def applied_seq(self) -> int:
        """The last change that is applied, perhaps with later ones."""
        return self.candidates.applied_seq

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
            self.candidates.advance(found.head)
            return self.applied_seq
        finally:
            self._follow.release()

    def _renew(self, keys: Keys, head: int) -> None:
        """Makes the candidates hold, of these keys, exactly those given. What is added, is so by change `head`."""
        self.candidates.remove([key_id for key_id, key in keys.items() if key is None])
        new = self.candidates.missing([key_id for key_id, key in keys.items() if key is not None])
        if len(new):
            self.added.note(head, new.tolist())  # first, so that it holds also where adding is broken off
            self.candidates.put(new, keysets.decode([keys[key_id] for key_id in new.tolist()], self.dim))  # type: ignore[misc]


def rebuild(
    session: Session,
    keyset: KeysetHead,
    settings: Settings,
    on_keys: OnKeys | None = None,
    goal: float = RECALL,
) -> Replica:
    """Builds the replica from the database alone and fits its index to find this share, `goal`, of the nearest keys.

    Where the keyset names a collection elsewhere, that is mended or filled.
    """
    if (there := writing.collection(session, keyset, settings.milvus)) is not None:
        return _replica(keyset, writing.write_all(session, keyset, there, on_keys))
    return replace(_replica(keyset, build_all(session, keyset, on_keys, goal)), is_new=True)


def _replica(keyset: KeysetHead, candidates: CandidateKeys) -> Replica:
    return Replica(keyset.keyset_id, keyset.checkpoint_id, keyset.dim, candidates)


def load_replica(session: Session, keyset: KeysetHead, settings: Settings) -> Replica:
    """Loads the replica from the keyset's snapshot, or from what is kept elsewhere, and does not catch up.

    Raises `SnapshotRefused` or `CandidatesRefused` on any doubt.
    """
    if (there := writing.collection(session, keyset, settings.milvus)) is not None:
        return _replica(keyset, writing.attach(session, there))
    directory = snapshots_of(session, settings.index_directory)
    index, applied_seq = KeyIndex.load(directory, keyset_id=keyset.keyset_id, dim=keyset.dim)
    _require_same_history(session, directory, keyset.keyset_id, applied_seq)
    found = InProcess(index, applied_seq)
    found.take(keyset.index_fit)
    return _replica(keyset, found)


def snapshots_of(session: Session, directory: Path) -> Path:
    """Gives the directory of this database's snapshots; an index directory may serve several databases in turn."""
    return directory / audit.database_id(session)


def save(session: Session, replica: Replica, settings: Settings, *, share: bool = False) -> bool:
    """Writes the replica's snapshot, and shares it where that is due or with `share`, or hands on what is elsewhere.

    It must have caught up, or a process could bring back what another has removed. One that was just built is shared in
    any case. That the shared place is out of reach is raised only with `share`. Says False where facts were erased
    meanwhile, so that it was not shared.
    """
    is_shared = True
    if isinstance(replica.candidates, Remote):
        writing.hand_on(session, replica.keyset_id, replica.candidates.collection)
    else:
        _save_snapshot(session, replica, snapshots_of(session, settings.index_directory))
        is_shared = _share(session, replica, settings, must=share)
    keysets.note_snapshot(session, replica.keyset_id, replica.applied_seq)
    keysets.note_fit(session, replica.keyset_id, replica.candidates.fit)
    return is_shared


def _save_snapshot(session: Session, replica: Replica, directory: Path) -> None:
    assert isinstance(replica.candidates, InProcess)
    with replica._follow:
        index, seq = replica.candidates.index, replica.applied_seq
        index.save(directory, keyset_id=replica.keyset_id, applied_seq=seq)
        note_history(directory, replica.keyset_id, seq, audit.hash_at(session, seq))


def _share(session: Session, replica: Replica, settings: Settings, *, must: bool) -> bool:
    # Before the keyset's row is written to, which others would wait for as long as the copying takes.
    anyway = must or replica.is_new
    try:
        is_shared = sharing.publish(
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
    """Refuses a snapshot with changes that this database never had, as it may have been restored from a backup."""
    noted = None
    with suppress(OSError, ValueError):
        noted = json.loads(history_file(directory, keyset_id).read_text())
    if noted != {"seq": applied_seq, "hash": audit.hash_at(session, applied_seq)}:
        raise SnapshotRefused(
            keyset_id=keyset_id, cause=f"its change {applied_seq} is not in this database's log"
        )
