"""Compares the saved indexes of keysets with the database: snapshots on disk, and collections on a Milvus server.

It finds which snapshots are refused, which hold wrong keys, and which files are orphans. A retired keyset's collection
outlives it where Milvus was out of reach, and that of a keyset that is still building may be filled, or half filled.
Both hold keys and do not follow the log.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy import null, select, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import (
    CandidatesRefused,
    CandidatesUnavailable,
    SharedSnapshotsUnavailable,
    SnapshotRefused,
    count_of,
)
from colmlm.kb.keys import activation, keysets
from colmlm.kb.keys.keycopy import indexed_ids
from colmlm.kb.keys.keysets import keyset_head
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup import shared
from colmlm.kb.lookup.collection import Collection
from colmlm.kb.lookup.remote import (
    CollectionCandidates,
    CollectionWriter,
    address_of_note,
    collection_of_keyset,
    is_filled,
)
from colmlm.kb.lookup.replica import Replica, load_saved_replica, snapshots_of
from colmlm.kb.lookup.snapshot_files import locked_directory
from colmlm.kb.lookup.specs import DROPPED
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.settings import MilvusAddress, Settings
from colmlm.kb.store.waits import wait_for_turn
from colmlm.kb.tables import KeysetRow


@dataclass(frozen=True, slots=True)
class NamedCollection:
    """The Milvus collection that a keyset names, existing or not, and where it was last filled (None: unknown)."""

    keyset_id: int
    state: str
    there: Collection
    filled_at: str | None

    @property
    def is_needed(self) -> bool:
        """Say whether its keyset is active or ready."""
        return self.state in ("ready", "active")

    def is_kept(self, session: Session) -> bool:
        """Say whether its keyset is active or ready, or is building and has filled the collection to the end."""
        if self.is_needed:
            return True
        return self.state == "building" and self.is_there() and is_filled(session, self.there)

    def is_there(self) -> bool:
        """Say whether the collection is on this server. Raises `CandidatesUnavailable` where it may be on another."""
        if (doubt := self.doubt()) is not None:
            raise CandidatesUnavailable(self.there.where, doubt)
        return self.there.is_there()

    def doubt(self) -> str | None:
        """Describe where the collection was filled, if this server lacks it and another one had it; else give None."""
        if self.filled_at in (None, self.there.address.uri) or self.there.is_there():
            return None
        return f"it is not there, and was filled at {self.filled_at}"

    def drop(self, session: Session) -> NamedCollection | None:
        """Drop the collection in this process's turn, unless it is kept by then. Give it if it is kept, else None.

        While the turn was awaited another process may have filled it, and its keyset may answer with it by now. The
        keyset's row then says that the collection is gone, so that nobody asks for it again.
        """
        now = self._in_turn(session)
        if now is None or now.is_kept(session):
            return now
        if now.is_there():
            CollectionWriter(session, now.there).drop()
        now._note_gone(session)
        return None

    def forget(self, session: Session) -> None:
        """Record that the collection is gone, if it is still in doubt: the server that had it is gone or renamed."""
        now = self._in_turn(session)
        if now is not None and now.doubt() is not None:
            now._note_gone(session)

    def _note_gone(self, session: Session) -> None:
        note = update(KeysetRow).where(KeysetRow.id == self.keyset_id)
        if self.state == "retired":
            session.execute(note.values(index_spec=KeysetRow.index_spec + DROPPED))
        else:
            session.execute(note.values(index_fit=null()))

    def _in_turn(self, session: Session) -> NamedCollection | None:
        """Wait for this process's turn to write to the collection and read its keyset again; None if it was dropped."""
        wait_for_turn(session, self.keyset_id)
        return _named_collection(session, self.keyset_id, self.there.address)


def named_collections(session: Session, settings: Settings) -> list[NamedCollection]:
    """Give the collections that keysets name, in the order of keyset ids, except those known to be dropped."""
    ids = session.scalars(select(KeysetRow.id).order_by(KeysetRow.id)).all()
    found = (_named_collection(session, keyset_id, settings.milvus) for keyset_id in ids)
    return [one for one in found if one is not None]


def _named_collection(session: Session, keyset_id: int, address: MilvusAddress) -> NamedCollection | None:
    keyset = keyset_head(session, keyset_id)
    if (there := collection_of_keyset(session, keyset, address)) is None:
        return None
    at = None if keyset.index_fit is None else address_of_note(keyset.index_fit.spec)
    return NamedCollection(keyset_id, keyset.state, there, at)


@dataclass(frozen=True, slots=True)
class CollectionStandings:
    """The keysets whose collections are to be compared, and a sentence for each other collection.

    The `useless` are to be dropped, the `astray` are in doubt, and the `unasked` could not be reached.
    """

    kept: frozenset[int] = frozenset()
    useless: Mapping[int, str] = field(default_factory=dict)
    astray: Mapping[int, str] = field(default_factory=dict)
    unasked: Mapping[int, str] = field(default_factory=dict)

    def describe_findings(self) -> tuple[str, ...]:
        return (*self.useless.values(), *self.astray.values(), *self.unasked.values())


def collection_standings(session: Session, settings: Settings) -> CollectionStandings:
    """Sort the collections that keysets name into those to be compared, to be dropped, in doubt and out of reach."""
    kept, useless, astray, unasked = set(), {}, {}, {}
    for one in named_collections(session, settings):
        of = f"{one.there.where} is of keyset {one.keyset_id}, which is {one.state}"
        try:
            if not one.is_needed and (doubt := one.doubt()) is not None:
                astray[one.keyset_id] = f"{of}: {doubt}; a repair forgets it"
            elif one.is_kept(session):
                kept.add(one.keyset_id)
            elif one.is_there():
                useless[one.keyset_id] = of
        except CandidatesUnavailable as unavailable:
            unasked[one.keyset_id] = f"{of}: {unavailable}"
    return CollectionStandings(frozenset(kept), useless, astray, unasked)


_FILE = re.compile(r"keyset-(\d+)(?:\.tmp|\.json|\.history|-seq-\d+-[0-9a-f]{16}\.faiss)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of comparing a keyset's snapshot with its keys: why it is `refused` (or None), and the wrong ids.

    Where `is_elsewhere`, it is the keyset's collection. `twice` counts the surplus copies of keys in it.
    """

    keyset_id: int
    refused: str | None = None
    num_ids: int = 0
    missing: tuple[int, ...] = ()
    left_over: tuple[int, ...] = ()
    twice: int = 0
    is_elsewhere: bool = False

    @property
    def description(self) -> str:
        return "collection" if self.is_elsewhere else "snapshot"

    @property
    def is_good(self) -> bool:
        return self.refused is None and not self.missing and not self.left_over and not self.twice


@dataclass(frozen=True, slots=True)
class SharedFaults:
    """The faults of the shared place: by keyset, the files left over, and in `unreached` why it cannot be read.

    `unlisted` says why unfinished uploads cannot be listed.
    """

    by_keyset: Mapping[int, str] = field(default_factory=dict)
    left_over: tuple[str, ...] = ()
    unreached: str | None = None
    unlisted: str | None = None

    def describe_findings(self) -> tuple[str, ...]:
        left_over = (f"{name} in the shared place belongs to no snapshot" for name in self.left_over)
        return (*self.by_keyset.values(), *left_over, *filter(None, (self.unreached, self.unlisted)))


@dataclass(frozen=True, slots=True)
class Inspection:
    """The contents of the index directory, of the shared place and of collections elsewhere.

    `unfinished` are keysets that are still building though every fact has a key, but for those whose collection could
    not be asked for.
    """

    snapshots: tuple[Snapshot, ...]
    orphans: tuple[Path, ...]
    unfinished: tuple[int, ...]
    shared: SharedFaults = field(default_factory=SharedFaults)
    collections: CollectionStandings = field(default_factory=CollectionStandings)

    def differences(self, *, but: int | None = None) -> tuple[str, ...]:
        """Describe each snapshot that lacks keys or has surplus ones, except that of keyset `but`."""
        return tuple(
            f"{s.description} of keyset {s.keyset_id}: {count_of(len(s.missing), 'key')} missing "
            f"{list(s.missing[:10])}, {len(s.left_over)} left over {list(s.left_over[:10])}"
            for s in self.snapshots
            if (s.missing or s.left_over) and s.keyset_id != but
        )

    def mendable(self) -> tuple[str, ...]:
        """Describe in a sentence each the faults that can be mended and change no answer."""
        return (
            *(
                f"{s.description} of keyset {s.keyset_id} is refused: {s.refused}"
                for s in self.snapshots
                if s.refused
            ),
            *(
                f"{s.description} of keyset {s.keyset_id}: {s.twice} stored twice"
                for s in self.snapshots
                if s.twice
            ),
            *(f"{file.name} belongs to no snapshot" for file in self.orphans),
            *(f"keyset {keyset_id} is keyed to the end and still building" for keyset_id in self.unfinished),
            *self.shared.describe_findings(),
            *self.collections.describe_findings(),
        )

    def unreached_findings(self) -> tuple[str, ...]:
        """Describe the shared place and the collections that could not be reached."""
        shared = [self.shared.unreached] if self.shared.unreached else []
        return (*shared, *self.collections.unasked.values())


def inspect_snapshots(session: Session, settings: Settings) -> Inspection:
    """Open every snapshot of a keyset in use, as the next process would, and compare its ids with the database.

    A collection elsewhere is opened if its keyset is active or ready, or is building and has filled it to the end.
    """
    in_use = keysets.heads_in_use(session)
    directory = snapshots_of(session, settings.index_directory)
    collections = collection_standings(session, settings)
    kept = [
        k
        for k in in_use
        if (directory / f"keyset-{k.keyset_id}.json").exists() or k.keyset_id in collections.kept
    ]
    orphans: list[Path] = []
    if directory.exists():
        with locked_directory(directory, fcntl.LOCK_SH):  # so that no other process is saving meanwhile
            orphans = _orphans(directory, {keyset.keyset_id for keyset in in_use})
    return Inspection(
        snapshots=tuple(_inspect(session, keyset, settings) for keyset in kept),
        orphans=tuple(orphans),
        unfinished=tuple(
            k.keyset_id
            for k in in_use
            if k.state == "building" and k.keyset_id not in collections.unasked and _is_keyed(session, k)
        ),
        shared=_inspect_shared(session, settings),
        collections=collections,
    )


def _is_keyed(session: Session, keyset: KeysetHead) -> bool:
    """Tell whether a keyset has keys, and one for each live fact."""
    counted = activation.count_keys(session, keyset.keyset_id)
    return counted.num_keys > 0 and not counted.num_unkeyed


def _inspect_shared(session: Session, settings: Settings) -> SharedFaults:
    if (folder := shared.folder_of(session, settings)) is None:
        return SharedFaults()
    try:
        uploads = folder.unfinished_uploads()
        return SharedFaults(
            shared.list_faults(session, folder),
            shared.list_leftovers(session, folder, uploads),
            unlisted=uploads.unlisted,
        )
    except SharedSnapshotsUnavailable as error:
        return SharedFaults(unreached=str(error))


def _inspect(session: Session, keyset: KeysetHead, settings: Settings) -> Snapshot:
    try:
        replica = load_saved_replica(session, keyset, settings)
    except SnapshotRefused as refused:
        return Snapshot(keyset.keyset_id, refused=refused.cause)
    except CandidatesRefused as refused:
        missing = indexed_ids(session, keyset.keyset_id).tolist()
        return Snapshot(keyset.keyset_id, str(refused), missing=tuple(missing), is_elsewhere=True)
    replica.catch_up(connection_of(session))
    return compare_snapshots(session, replica)


def compare_snapshots(session: Session, replica: Replica) -> Snapshot:
    """Compare the ids of an index with those of the keys it should hold."""
    wanted, found = indexed_ids(session, replica.keyset_id), replica.candidates.ids
    return Snapshot(
        replica.keyset_id,
        num_ids=len(found),
        missing=tuple(np.setdiff1d(wanted, found, assume_unique=True).tolist()),
        left_over=tuple(np.setdiff1d(found, wanted, assume_unique=True).tolist()),
        twice=replica.candidates.num_twice,
        is_elsewhere=isinstance(replica.candidates, CollectionCandidates),
    )


def remove_orphans(session: Session, index_directory: Path) -> None:
    """Remove the orphaned files of snapshots, searched again under the lock, as a process may have named one since."""
    directory = snapshots_of(session, index_directory)
    if not directory.exists():
        return
    in_use = {keyset.keyset_id for keyset in keysets.heads_in_use(session)}
    with locked_directory(directory, fcntl.LOCK_EX):
        for file in _orphans(directory, in_use):
            file.unlink(missing_ok=True)


def _orphans(directory: Path, in_use: set[int]) -> list[Path]:
    """Find the files of snapshots that no manifest names, of writers that died, and of keysets not in use."""
    found = []
    for file in sorted(directory.glob("keyset-*")):
        if (match := _FILE.fullmatch(file.name)) is None:
            continue
        keyset_id = int(match[1])
        if keyset_id not in in_use or file.suffix == ".tmp" or not _is_named(directory, keyset_id, file):
            found.append(file)
    return found


def _is_named(directory: Path, keyset_id: int, file: Path) -> bool:
    """Say whether the keyset's manifest names the file, or is the file.

    An unreadable manifest is taken to name every file.
    """
    manifest = directory / f"keyset-{keyset_id}.json"
    if not manifest.exists():
        return False
    if file.suffix != ".faiss":
        return True
    with suppress(OSError, ValueError, LookupError, TypeError):
        named: str = json.loads(manifest.read_text())["file"]
        return Path(named).name == file.name
    return True
