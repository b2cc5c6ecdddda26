"""Shared snapshots: one process builds an index, and the others fetch its snapshot from a place that all of them reach.

Which file there is a keyset's snapshot, and what its bytes have to be, stands in the database, so nothing is believed
for its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.log import audit
from colmlm.kb.lookup.shared_files import SharedFolder
from colmlm.kb.lookup.snapshot_files import sha256_of
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
    statement = select(KeysetRow.id, KeysetRow.shared_snapshot).where(
        KeysetRow.state != "retired", KeysetRow.shared_snapshot.is_not(None)
    )
    found = {row.id: SharedSnapshot(**row.shared_snapshot) for row in session.execute(statement)}
    return {
        n: shared
        for n, shared in found.items()
        if shared.log_hash == audit.hash_at(session, shared.applied_seq)
    }


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
    named = {shared.file for shared in noted(session).values()}
    return tuple(name for name in folder.names() if FILE.fullmatch(name) and name not in named)


def faults(session: Session, folder: SharedFolder) -> dict[int, str]:
    """Reads every shared snapshot, and gives a sentence for each that nobody could use or that should be gone."""
    found = {}
    for keyset_id, shared in noted(session).items():
        if is_outlived(session, shared):
            found[keyset_id] = "is from before an erasure"
        elif (fault := _fault(folder, shared)) is not None:
            found[keyset_id] = fault
    return {keyset_id: f"shared snapshot of keyset {keyset_id}: {said}" for keyset_id, said in found.items()}


def _fault(folder: SharedFolder, shared: SharedSnapshot) -> str | None:
    if shared.file not in folder.names():
        return f"{shared.file} is not there"
    with folder.reading(shared.file) as stream:
        digest = sha256_of(stream)
    return None if digest == shared.sha256 else f"{shared.file} does not have its digest"
