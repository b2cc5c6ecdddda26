"""Open replicas: those that a process holds, of the keyset that answers and of one that may answer next.

`Replicas` opens and drops them, keeps them caught up, and writes their snapshots, or their collections elsewhere. A
keyset's shared snapshot is fetched into the index directory, if it is better than the snapshot there.
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from colmlm.kb.errors import (
    CandidatesRefused,
    CandidatesUnavailable,
    NoActiveKeyset,
    SharedSnapshotsUnavailable,
    SnapshotRefused,
)
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keysets import AUTO_SPEC, active_keyset_id
from colmlm.kb.keys.records import KeysetHead, SharedSnapshot
from colmlm.kb.lookup import shared
from colmlm.kb.lookup.device import DeviceCandidates, may_use_cuda
from colmlm.kb.lookup.in_process import OnKeys
from colmlm.kb.lookup.records import NOBODY, IndexMemory, Observer
from colmlm.kb.lookup.remote import CollectionCandidates, hand_on_changes
from colmlm.kb.lookup.replica import (
    Replica,
    load_saved_replica,
    note_unsaved_index,
    read_replica,
    rebuild_replica,
    save_replica,
)
from colmlm.kb.lookup.shared import SharedFolder, SnapshotExtent, folder_of, noted_snapshots
from colmlm.kb.lookup.snapshot_files import IndexRecord, note_history, read_manifest, replace_snapshot, sha256
from colmlm.kb.lookup.specs import TORCH_SPEC, collection_of
from colmlm.kb.store import database
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import TOLD_SECONDS, has_turn

STALLED_SECONDS = 300.0  # a large snapshot's digest is computed for a minute, in which nothing is written
ENDED_SECONDS = 5.0


def fetch_snapshot(
    session: Session, keyset_id: int, dim: int, settings: Settings, *, anyway: bool = False
) -> bool:
    """Copy a keyset's shared snapshot into the index directory, if it is far ahead of the one there, or `anyway`.

    Gives whether it did. An error is logged and not raised, since the index can be built without the snapshot.
    """
    found = _better_snapshot(session, keyset_id, dim, settings, anyway=anyway)
    return found is not None and _fetch_snapshot(*found, keyset_id, dim, settings)


def fetch_snapshot_apart(
    session: Session, keyset_id: int, dim: int, settings: Settings, stalled_seconds: float = STALLED_SECONDS
) -> None:
    """Fetch a shared snapshot in a process of its own, since object storage's threads do not survive a fork.

    The process is killed after `stalled_seconds` without progress: storage may never answer.
    """
    if (found := _better_snapshot(session, keyset_id, dim, settings)) is None:
        return
    copying = multiprocessing.get_context("fork").Process(
        target=_fetch_snapshot, args=(*found, keyset_id, dim, settings)
    )
    copying.start()
    directory = settings.index_directory / found[0].name
    before, now = None, _file_sizes(directory)
    while copying.is_alive() and before != now:
        copying.join(stalled_seconds)
        before, now = now, _file_sizes(directory)
    if copying.is_alive():
        copying.kill()
        _log.warning(
            "the shared snapshot of keyset %d was not fetched: nothing came for %.0f s",
            keyset_id,
            stalled_seconds,
        )
    copying.join(ENDED_SECONDS)  # one that waits for a disk that is gone cannot even be killed


def _file_sizes(directory: Path) -> dict[str, int]:
    """Give the bytes of each file in a directory, which another process is writing and renaming."""
    found = {}
    for file in directory.glob("*"):
        with suppress(FileNotFoundError):
            found[file.name] = file.stat().st_size
    return found


def _better_snapshot(
    session: Session, keyset_id: int, dim: int, settings: Settings, *, anyway: bool = False
) -> tuple[SharedFolder, SharedSnapshot] | None:
    """Give a keyset's shared snapshot and its folder; None if there is none, or the local one is good enough."""
    folder, there = folder_of(session, settings), noted_snapshots(session).get(keyset_id)
    if folder is None or there is None:
        return None
    here = _extent_here(settings.index_directory / folder.name, keyset_id, dim)
    is_better = anyway or here is None or SnapshotExtent.of(there).is_far_ahead(here)
    return (folder, there) if is_better else None


def _fetch_snapshot(
    folder: SharedFolder, there: SharedSnapshot, keyset_id: int, dim: int, settings: Settings
) -> bool:
    try:
        copy_snapshot(folder, there, keyset_id, dim, settings.index_directory / folder.name)
    except (SharedSnapshotsUnavailable, OSError) as error:
        _log.warning("the shared snapshot of keyset %d was not fetched: %s", keyset_id, error)
        return False
    _log.info("fetched the shared snapshot of keyset %d, as of change %d", keyset_id, there.applied_seq)
    return True


def copy_snapshot(
    folder: SharedFolder, shared: SharedSnapshot, keyset_id: int, dim: int, directory: Path
) -> None:
    """Copy a shared snapshot into the index directory. Raises `SharedSnapshotsUnavailable` if size or digest differ."""

    def write(file: Path) -> IndexRecord:
        folder.get(shared.file, file, shared.num_bytes)
        if sha256(file) != shared.sha256:
            cause = f"{shared.file} does not have the digest that the database knows"
            raise SharedSnapshotsUnavailable(folder.where, cause)
        return IndexRecord(dim, shared.spec, shared.count, shared.sha256)

    replace_snapshot(directory, keyset_id, shared.applied_seq, write)
    note_history(directory, keyset_id, shared.applied_seq, shared.log_hash)


def _extent_here(directory: Path, keyset_id: int, dim: int) -> SnapshotExtent | None:
    """Give the extent of a keyset's snapshot in the index directory; None where there is none that can be read."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        manifest = read_manifest(directory / f"keyset-{keyset_id}.json", keyset_id, dim)
        return SnapshotExtent(manifest["spec"], int(manifest["count"]), int(manifest["applied_seq"]))
    return None


HAND_ON_SECONDS = 2.0
_SHARE_TRIES = 3

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Replicas:
    """The replica of the active keyset, one for each process, or with a `keyset_id` the replica of that keyset.

    `reader` is an engine that sends no BEGIN and no ROLLBACK. Threads may share the object.
    """

    reader: Engine
    sessions: sessionmaker[Session]
    settings: Settings
    keyset_id: int | None = None
    observer: Observer = NOBODY
    _replica: Replica | None = None
    _standby: Replica | None = None  # the keyset that was active before, or that may be activated next
    _hand_on_from: float = 0.0
    _known_corpora: set[str] = field(default_factory=set)
    _opening: threading.Lock = field(default_factory=threading.Lock)

    def _catch_up(self, replica: Replica, wait_seconds: float | None = None) -> int:
        return database.read_from(self.reader, partial(replica.catch_up, wait_seconds=wait_seconds))

    def current(self) -> Replica:
        """Give the replica of the keyset that is active now, and open it where this process holds another or none."""
        with self._opening, self.sessions() as session:
            keyset_id = self._answering_keyset_id(session)
            held = self._replica
            if held is None or held.keyset_id != keyset_id or held.candidates.is_lost:
                former, standby = self._replica, self._standby
                if standby is None or standby.keyset_id != keyset_id or standby.candidates.is_lost:
                    standby = self._open(keyset_id)
                self._replica, self._standby = standby, former
                return standby
            return held

    def _open(self, keyset_id: int) -> Replica:
        """Open a keyset's replica. One that had to be built is saved and shared, if processes share snapshots."""
        with self.sessions.begin() as session:
            keyset = keysets.keyset_head(session, keyset_id)
            found = open_caught_up_replica(session, keyset, self.settings, once=True)
            if found.is_new and self.settings.shared_snapshots is not None:
                try:
                    save_replica(session, found, self.settings)
                except OSError as error:  # it answers all the same
                    _log.warning("no snapshot of keyset %d was written: %s", found.keyset_id, error)
            return found

    def _open_replica(self) -> Replica:
        """Give the open replica; open one first if none is open or the open one is lost."""
        held = self._replica
        return self.current() if held is None or held.candidates.is_lost else held

    def _answering_keyset_id(self, session: Session) -> int:
        """Give the id of the keyset that answers: the active one, or the one that `keyset_id` names.

        Raises `NoActiveKeyset`, or of a named keyset `KeysetNotFound` or `KeysetNotReady`.
        """
        if self.keyset_id is None:
            if (active := active_keyset_id(session)) is None:
                raise NoActiveKeyset
            return active
        keysets.require_answering(session, self.keyset_id)
        return self.keyset_id

    def stand_by(self, keyset_id: int | None, useful: Collection[int]) -> None:
        """Keep the replica of this keyset (None: the present one) open and caught up on standby, if its id is `useful`.

        A replica on standby is opened while lookups go on, so that activating its keyset makes none of them wait.
        """
        held = self._standby
        if held is not None and held.candidates.is_lost:
            held = None
        if keyset_id is not None and (held is None or held.keyset_id != keyset_id):
            held = self._open(keyset_id)
        if held is not None and held.keyset_id in useful:
            self._catch_up(held)
        with self._opening:
            if held is None or held.keyset_id != self.keyset_in_use:  # unless it was activated meanwhile
                self._standby = held if held is not None and held.keyset_id in useful else None

    @property
    def applied_seq(self) -> int | None:
        """The last change in this process's index; None where none is open yet."""
        return self._replica.applied_seq if self._replica else None

    @property
    def memory(self) -> IndexMemory | None:
        """The memory that the index of this process takes; None unless torch searches it."""
        candidates = self._replica.candidates if self._replica else None
        return candidates.index.memory if isinstance(candidates, DeviceCandidates) else None

    @property
    def keyset_in_use(self) -> int | None:
        """The keyset of the index that is open in this process; None where none is open yet."""
        return self._replica.keyset_id if self._replica else None

    @property
    def checkpoint_in_use(self) -> str | None:
        """The checkpoint of the keyset whose index is open in this process; None where none is open yet."""
        return self._replica.checkpoint_id if self._replica else None

    def open_here(self) -> None:
        """Open and catch up the index of the active keyset before a fork, unless a fork would break it.

        A fork breaks connections to Milvus and object storage, torch's threads, and the use of a device. An index that
        needs one of these is opened after the fork. So is one without a snapshot in the index directory, where servers
        share snapshots.
        """
        with self.sessions() as session:
            keyset = keysets.active_head(session)
            if collection_of(keyset.index_spec) is not None or keyset.index_spec == TORCH_SPEC:
                return
            if keyset.index_spec == AUTO_SPEC and may_use_cuda(self.settings):
                return
            if self.settings.shared_snapshots is not None:
                fetch_snapshot_apart(session, keyset.keyset_id, keyset.dim, self.settings)
                # Without one, a server builds it after the fork, and the others fetch it.
                with suppress(SnapshotRefused):
                    self._replica = load_saved_replica(session, keyset, self.settings)
        if self.settings.shared_snapshots is None or self._replica is not None:
            self.catch_up()

    def catch_up(self) -> int:
        return self._catch_up(self.current())

    def adopt_fit(self, keyset: KeysetHead) -> None:
        """Make the open index read as many lists, and score as many candidates, as the keyset's stored fit says.

        Another process may have stored that fit. Does nothing where the open index is of another keyset.
        """
        if self._replica is not None and self._replica.keyset_id == keyset.keyset_id:
            self._replica.candidates.adopt_fit(keyset.index_fit)

    def rebuild(self) -> None:
        """Build the replica again from the database alone, and write its snapshot."""
        with self._opening, self.sessions() as session:
            self._replica = rebuild_replica(session, keysets.active_head(session), self.settings)
        self.snapshot()

    def prepare(self, keyset_id: int, on_keys: OnKeys | None = None, *, share: bool = False) -> None:
        """Write a keyset's index to disk, caught up, whether the keyset is active or still to be activated.

        With `share` the snapshot is also copied to the shared place, even if that is not due. Raises
        `SharedSnapshotsUnavailable` if that fails.

        Where the index has to be built, `on_keys` is called with the number of keys added and that of all keys. A
        collection elsewhere is brought up to the log, or filled.
        """
        for _ in range(_SHARE_TRIES):
            if self._prepare_replica(keyset_id, on_keys, share=share) or not share:
                return
        where = self.settings.shared_snapshots or ""
        raise SharedSnapshotsUnavailable(where, "each time facts were erased before a snapshot was there")

    def _prepare_replica(self, keyset_id: int, on_keys: OnKeys | None, *, share: bool) -> bool:
        held = self._replica
        with self.sessions.begin() as session:
            keyset = keysets.keyset_head(session, keyset_id)
            if held is None or held.keyset_id != keyset_id or held.candidates.is_lost:
                if keyset.index_spec == TORCH_SPEC:
                    note_unsaved_index(session, keyset_id)
                    return True
                held = self._open_or_rebuild(session, keyset, on_keys)
            held.candidates.adopt_fit(keyset.index_fit)
            held.catch_up(database.connection_of(session))
            if held.candidates.has_outgrown(keyset.index_spec):
                held = rebuild_replica(session, keyset, self.settings, on_keys)
                if self._replica is not None and self._replica.keyset_id == keyset_id:
                    self._replica = held
            return save_replica(session, held, self.settings, share=share)

    def _open_or_rebuild(self, session: Session, keyset: KeysetHead, on_keys: OnKeys | None) -> Replica:
        try:
            return open_caught_up_replica(session, keyset, self.settings, on_keys, once=True)
        except CandidatesRefused:
            return rebuild_replica(session, keyset, self.settings, on_keys)

    def hand_on(self) -> None:
        """Write into the open Milvus collection the changes that it lacks, unless another process is writing there.

        It writes every few seconds at most, since each time leaves a deleted mark in the collection.
        """
        held = self._replica
        if (
            held is None
            or not isinstance(held.candidates, CollectionCandidates)
            or time.monotonic() < self._hand_on_from
        ):
            return
        if held.candidates.is_ahead:
            self._hand_on_from = time.monotonic() + HAND_ON_SECONDS
            with self.sessions.begin() as session:
                hand_on_changes(session, held.keyset_id, held.candidates.collection)

    def has_outgrown(self, index_spec: str) -> bool:
        """Say whether another kind of index is due in place of the open one, for a keyset with this spec."""
        return self._replica is not None and self._replica.candidates.has_outgrown(index_spec)

    def grow(self, on_keys: OnKeys | None = None) -> None:
        """Replace the index that its keyset has outgrown by one of another kind. The old one answers until then."""
        held = self._replica
        if held is None:
            return
        with self.sessions.begin() as session:
            keyset = keysets.keyset_head(session, held.keyset_id)
            replica = open_grown_replica(session, keyset, self.settings, on_keys)
        with self._opening:
            if replica is not None and self._replica is held:
                self._replica = replica

    def snapshot(self, *, share: bool = False) -> None:
        """Write the active keyset's index to disk, caught up."""
        self.prepare(self.current().keyset_id, share=share)


# Growing: puts another kind of index in the place of an exact one that its keyset has outgrown.


def open_grown_replica(
    session: Session, keyset: KeysetHead, settings: Settings, on_keys: OnKeys | None = None
) -> Replica | None:
    """Open a replica with the kind of index that is due for the keyset: load its snapshot, or build it.

    Gives None while another process builds it.
    """
    if not has_turn(session, keyset.keyset_id):
        return None
    return _load_grown_replica(session, keyset, settings) or _build_grown_replica(
        session, keyset, settings, on_keys
    )


def _load_grown_replica(session: Session, keyset: KeysetHead, settings: Settings) -> Replica | None:
    try:
        found = load_best_replica(session, keyset, settings)
    except SnapshotRefused:
        return None
    found.catch_up(connection_of(session))
    return None if found.candidates.has_outgrown(keyset.index_spec) else found


def _build_grown_replica(
    session: Session, keyset: KeysetHead, settings: Settings, on_keys: OnKeys | None
) -> Replica:
    built = rebuild_replica(session, keyset, settings, on_keys)
    built.catch_up(connection_of(session))
    save_replica(session, built, settings)
    return built


# Opening: gives a process its replica from a snapshot, its own or a shared one. Of many processes one builds
# it.

POLL_SECONDS = 0.5

_log_opening = logging.getLogger(__name__)


def open_caught_up_replica(
    session: Session,
    keyset: KeysetHead,
    settings: Settings,
    on_keys: OnKeys | None = None,
    *,
    once: bool = False,
) -> Replica:
    """Open the replica from the keyset's snapshot, or rebuild it where the snapshot is refused, and catch up.

    With `once`, and where snapshots are shared, it waits while another process builds the index. If it builds the index
    itself, it keeps the turn to the end of the transaction. A collection elsewhere is not filled here, which may be far
    too much for a lookup. If it lacks more keys than a process may hold, they are first written there. Keys that torch
    searches are read from the database.
    """
    replica = read_replica(session, keyset, settings, on_keys) or _open_kept(
        session, keyset, settings, on_keys, once=once
    )
    try:
        replica.catch_up(connection_of(session))
    except CandidatesUnavailable:
        if not isinstance(replica.candidates, CollectionCandidates) or not replica.candidates.is_lost:
            raise
        hand_on_changes(session, keyset.keyset_id, replica.candidates.collection)
        replica = load_saved_replica(session, keyset, settings)
        replica.catch_up(connection_of(session))
    return replica


def _open_kept(
    session: Session, keyset: KeysetHead, settings: Settings, on_keys: OnKeys | None, *, once: bool
) -> Replica:
    """Load a keyset's saved index. Where that is refused, take what another process shares (`once`), or build it."""
    try:
        return load_best_replica(session, keyset, settings)
    except SnapshotRefused:
        found = _await_shared_replica(session, keyset, settings) if once else None
        return found or rebuild_replica(session, keyset, settings, on_keys)


def load_best_replica(session: Session, keyset: KeysetHead, settings: Settings) -> Replica:
    """Load the replica from the keyset's snapshot, or from the shared one where that is far ahead or the only one.

    It does not catch up. Raises `SnapshotRefused` or `CandidatesRefused` on any doubt.
    """
    if collection_of(keyset.index_spec) is None:
        fetch_snapshot(session, keyset.keyset_id, keyset.dim, settings)
    try:
        return load_saved_replica(session, keyset, settings)
    except SnapshotRefused:
        if not fetch_snapshot(session, keyset.keyset_id, keyset.dim, settings, anyway=True):
            raise
        return load_saved_replica(session, keyset, settings)


def _await_shared_replica(session: Session, keyset: KeysetHead, settings: Settings) -> Replica | None:
    """Wait for the turn to build the index; give the replica that another process shared until then, or None."""
    folder = shared.folder_of(session, settings)
    if folder is None or not _is_in_reach(folder):
        return None
    known = shared.noted_snapshots(session).get(keyset.keyset_id)
    tell_at = began = time.monotonic()
    while True:
        is_turn = has_turn(session, keyset.keyset_id)
        if (newer := shared.noted_snapshots(session).get(keyset.keyset_id)) != known:
            known = newer
            with suppress(SnapshotRefused):
                return load_best_replica(session, keyset, settings)
        if is_turn:
            return None
        if (now := time.monotonic()) >= tell_at:
            tell_at = now + TOLD_SECONDS
            _log_opening.warning(
                "another process builds the index of keyset %d; waited for it for %.0f s",
                keyset.keyset_id,
                now - began,
            )
        time.sleep(POLL_SECONDS)


def _is_in_reach(folder: SharedFolder) -> bool:
    """Say whether the shared folder can be listed. If not, no process could fetch what another one builds."""
    try:
        folder.names()
    except SharedSnapshotsUnavailable:
        return False
    return True
