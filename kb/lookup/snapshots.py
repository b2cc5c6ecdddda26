"""Compares snapshots on disk with the database: which are refused, which hold wrong keys, which files are orphans."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy.orm import Session

from colmlm.kb.errors import CandidatesRefused, SharedSnapshotsUnavailable, SnapshotRefused
from colmlm.kb.keys import counting, keysets
from colmlm.kb.keys.keycopy import indexed_ids
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup import elsewhere, shared
from colmlm.kb.lookup.elsewhere import ElsewhereStanding
from colmlm.kb.lookup.in_process import InProcess
from colmlm.kb.lookup.replica import Replica, load_replica, snapshots_of
from colmlm.kb.lookup.snapshot_files import locked_directory
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.settings import Settings

_FILE = re.compile(r"keyset-(\d+)(?:\.tmp|\.json|\.history|-seq-\d+-[0-9a-f]{16}\.faiss)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A keyset's snapshot after catching up: why it is `refused` (or None), and how its ids differ from the keys'.

    Of a keyset whose keys are elsewhere it is what is there; `twice` are keys more than ids.
    """

    keyset_id: int
    refused: str | None = None
    num_ids: int = 0
    missing: tuple[int, ...] = ()
    left_over: tuple[int, ...] = ()
    twice: int = 0
    is_elsewhere: bool = False

    @property
    def what(self) -> str:
        return "collection" if self.is_elsewhere else "snapshot"

    @property
    def is_good(self) -> bool:
        return self.refused is None and not self.missing and not self.left_over and not self.twice


@dataclass(frozen=True, slots=True)
class SharedFaults:
    """The faults of snapshots in the shared place: by keyset, the files left over, and why it cannot be looked at.

    `unlisted` says why the parts of unfinished uploads cannot.
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
    collections: ElsewhereStanding = field(default_factory=ElsewhereStanding)

    def differences(self, *, but: int | None = None) -> tuple[str, ...]:
        """Give a sentence for each snapshot that was accepted and holds wrong keys."""
        return tuple(
            f"{s.what} of keyset {s.keyset_id}: {len(s.missing)} keys missing {list(s.missing[:10])},"
            f" {len(s.left_over)} left over {list(s.left_over[:10])}"
            for s in self.snapshots
            if (s.missing or s.left_over) and s.keyset_id != but
        )

    def mendable(self) -> tuple[str, ...]:
        """Give a sentence for each fault that changes no answer."""
        return (
            *(
                f"{s.what} of keyset {s.keyset_id} is refused: {s.refused}"
                for s in self.snapshots
                if s.refused
            ),
            *(f"{s.what} of keyset {s.keyset_id}: {s.twice} stored twice" for s in self.snapshots if s.twice),
            *(f"{file.name} belongs to no snapshot" for file in self.orphans),
            *(f"keyset {keyset_id} is keyed to the end and still building" for keyset_id in self.unfinished),
            *self.shared.describe_findings(),
            *self.collections.describe_findings(),
        )

    def unreached(self) -> tuple[str, ...]:
        """Give those of these sentences that tell of what could not be looked at."""
        shared = [self.shared.unreached] if self.shared.unreached else []
        return (*shared, *self.collections.unasked.values())


def inspect_snapshots(session: Session, settings: Settings) -> Inspection:
    """Open every snapshot of a keyset in use, as the next process would, and compare the sets of ids.

    What is elsewhere is opened of the keysets that answer or could, and where it was filled while its keyset builds.
    """
    in_use = keysets.heads_in_use(session)
    directory = snapshots_of(session, settings.index_directory)
    collections = elsewhere.standing(session, settings)
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
    counted = counting.count_keys(session, keyset.keyset_id)
    return counted.num_keys > 0 and not counted.num_unkeyed


def _inspect_shared(session: Session, settings: Settings) -> SharedFaults:
    if (folder := shared.folder_of(session, settings)) is None:
        return SharedFaults()
    try:
        uploads = folder.unfinished()
        return SharedFaults(
            shared.list_faults(session, folder),
            shared.remains(session, folder, uploads),
            unlisted=uploads.unlisted,
        )
    except SharedSnapshotsUnavailable as error:
        return SharedFaults(unreached=str(error))


def _inspect(session: Session, keyset: KeysetHead, settings: Settings) -> Snapshot:
    try:
        replica = load_replica(session, keyset, settings)
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
        is_elsewhere=not isinstance(replica.candidates, InProcess),
    )


def remove_orphans(session: Session, index_directory: Path) -> None:
    """Remove orphaned files. They are searched again under the lock, since a process may have named one meanwhile."""
    directory = snapshots_of(session, index_directory)
    if not directory.exists():
        return
    in_use = {keyset.keyset_id for keyset in keysets.heads_in_use(session)}
    with locked_directory(directory, fcntl.LOCK_EX):
        for file in _orphans(directory, in_use):
            file.unlink(missing_ok=True)


def _orphans(directory: Path, in_use: set[int]) -> list[Path]:
    """Find files of snapshots that no manifest names, of writers that died, and of keysets that are gone."""
    found = []
    for file in sorted(directory.glob("keyset-*")):
        if (match := _FILE.fullmatch(file.name)) is None:
            continue
        keyset_id = int(match[1])
        if keyset_id not in in_use or file.suffix == ".tmp" or not _is_named(directory, keyset_id, file):
            found.append(file)
    return found


def _is_named(directory: Path, keyset_id: int, file: Path) -> bool:
    """Say whether the keyset's manifest names the file, or is it.

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
