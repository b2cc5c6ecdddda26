"""Shared snapshots: one process builds an index, and the others fetch its snapshot from a place that all of them reach.

Which file there is a keyset's snapshot, where that is, and what its bytes have to be, stands in the database. So
nothing is believed for its name, and who looks at another place than the servers do knows it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, exists, select, true
from sqlalchemy.orm import Session

from colmlm.kb.keys import stored
from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.log import audit
from colmlm.kb.lookup.shared_files import SharedFolder, UnfinishedUploads
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import ChangeRow, KeysetRow

FAR_AHEAD = 10_000  # changes: catching up with so many takes seconds, and so does fetching a snapshot
FILE = re.compile(r"keyset-(\d+)-seq-\d+-[0-9a-f]{16}\.faiss")


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a snapshot is: its kind of index, its number of keys, the last change in it."""

    spec: str
    count: int
    applied_seq: int

    @classmethod
    def of(cls, described: Any) -> Extent:
        return cls(described.spec, described.count, described.applied_seq)

    def is_far_ahead(self, other: Extent) -> bool:
        """Says whether a process is better off with this snapshot than with the other one and the log."""
        changes, keys = self.applied_seq - other.applied_seq, abs(self.count - other.count)
        is_larger = 10 * keys > max(self.count, other.count)
        return changes >= 0 and (changes >= FAR_AHEAD or is_larger or self.spec != other.spec)


def folder_of(session: Session, settings: Settings) -> SharedFolder | None:
    """Gives the folder of this base in the shared place; None where none is named."""
    if settings.shared_snapshots is None:
        return None
    return SharedFolder(settings.shared_snapshots, audit.database_id(session))


def noted(session: Session) -> dict[int, SharedSnapshot]:
    """Gives what the shared snapshot of each keyset in use has to be, where there is one of this log."""
    return {
        n: one
        for n, one in _named(session, KeysetRow.state != "retired").items()
        if one.log_hash == audit.hash_at(session, one.applied_seq)
    }


def named(session: Session) -> dict[int, SharedSnapshot]:
    """Gives every shared snapshot that the database knows of, those of retired keysets too until they are removed."""
    return _named(session, true())


def _named(session: Session, which: ColumnElement[bool]) -> dict[int, SharedSnapshot]:
    columns = KeysetRow.id, KeysetRow.shared_snapshot, KeysetRow.whole_shared_snapshot
    read = {
        n: stored.read(SharedSnapshot, *said) for n, *said in session.execute(select(*columns).where(which))
    }
    return {keyset_id: one for keyset_id, one in read.items() if one is not None}


def unset(session: Session, settings: Settings) -> str | None:
    """Says where snapshots are shared that this process, for which no place is named, cannot look at."""
    found = sorted({one.place or "a place" for one in named(session).values()})
    if settings.shared_snapshots is not None or not found:
        return None
    return f"servers share snapshots at {', '.join(found)}, and COLMLM_SHARED_SNAPSHOTS is not set here"


def doubts(session: Session, folder: SharedFolder) -> dict[int, str]:
    """Gives a sentence for each snapshot that may lie elsewhere than in this folder, or in what is not mounted."""
    files = set(folder.names())
    settled = removed(session, folder, files)
    found = {n: _doubt(folder, one, files) for n, one in named(session).items() if n not in settled}
    return {keyset_id: _told(keyset_id, said) for keyset_id, said in found.items() if said is not None}


def removed(session: Session, folder: SharedFolder, files: Collection[str]) -> set[int]:
    """Gives the retired keysets whose snapshot was removed from this folder, of these files, and is named still.

    A process that ends between the two leaves that, and so did releases before. Another snapshot that is named has to
    be there, which shows that the folder is the servers'.
    """
    if not any(one.file in files for one in named(session).values()):
        return set()
    retired = _named(session, KeysetRow.state == "retired").items()
    return {n for n, one in retired if one.file not in files and one.place in (None, folder.address)}


def _doubt(folder: SharedFolder, shared: SharedSnapshot, files: Collection[str]) -> str | None:
    if shared.place not in (None, folder.address):
        return (
            f"the database knows it at {shared.place}, and COLMLM_SHARED_SNAPSHOTS is {folder.address} here"
        )
    if shared.file not in files:
        return f"{shared.file}, which the database names, is not there; is the place mounted?"
    return None


def must_stay(session: Session, folder: SharedFolder, shared: SharedSnapshot | None) -> str | None:
    """Says why a snapshot must not be replaced from here, as nobody would know of it then; None where it may.

    One that is gone from its folder may, unless it holds erased keys: then somebody has to say that it is gone.
    """
    if shared is None or (said := _doubt(folder, shared, folder.names())) is None:
        return None
    is_here = shared.place in (None, folder.address)
    return None if is_here and not is_outlived(session, shared) else said


def _told(keyset_id: int, said: str) -> str:
    return f"shared snapshot of keyset {keyset_id}: {said}"


def is_outlived(session: Session, shared: SharedSnapshot) -> bool:
    """Says whether facts were erased since, whose keys the snapshot may hold."""
    erased = exists().where(ChangeRow.seq > shared.applied_seq, ChangeRow.kind == "erase")
    return bool(session.scalar(select(erased)))


def is_old(session: Session, changes: int = FAR_AHEAD) -> bool:
    """Says whether the shared snapshot of the active keyset is so many changes behind the log."""
    active = session.scalar(select(KeysetRow.id).where(KeysetRow.state == "active"))
    there = noted(session).get(active or 0)
    return there is not None and audit.head_seq(session) - there.applied_seq >= changes


def left_over(session: Session, folder: SharedFolder) -> tuple[str, ...]:
    """Gives the files there that no keyset in use names, of writers that died and of keysets that are gone."""
    files = {one.file for one in noted(session).values()}
    return tuple(name for name in folder.names() if FILE.fullmatch(name) and name not in files)


def remains(session: Session, folder: SharedFolder, uploads: UnfinishedUploads) -> tuple[str, ...]:
    """Names what is left over there, with the parts of files that were never written to their end."""
    parts = (f"{name} (parts of it)" for name in uploads.names if FILE.fullmatch(name))
    return (*left_over(session, folder), *parts)


def faults(session: Session, folder: SharedFolder) -> dict[int, str]:
    """Reads every shared snapshot, and gives a sentence for each that nobody could use or that should be gone."""
    found = doubts(session, folder)
    for keyset_id, one in noted(session).items():
        if keyset_id in found:
            continue
        if is_outlived(session, one):
            found[keyset_id] = _told(keyset_id, "is from before an erasure")
        elif not folder.holds(one.file, one.num_bytes, one.sha256):
            found[keyset_id] = _told(keyset_id, f"{one.file} does not have its digest")
    return found
