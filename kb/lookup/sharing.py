"""Sharing: copies a keyset's snapshot from the index directory to the shared place, and removes what is left over.

Of several processes one at a time does so (`turns`), and never with a snapshot that is older than what is there, or it
could bring back what was erased.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.log import audit
from colmlm.kb.lookup.shared import FILE, Extent, folder_of, is_outlived, left_over, noted
from colmlm.kb.lookup.shared_files import SharedFolder
from colmlm.kb.lookup.snapshot_files import opened
from colmlm.kb.lookup.turns import is_mine, wait_until_mine
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import KeysetRow


def publish(session: Session, keyset_id: int, dim: int, settings: Settings, *, anyway: bool = False) -> None:
    """Copies the keyset's snapshot from the index directory to the shared place, where that is due, or `anyway`.

    It is due where none is there, where this is far ahead of it, and where facts were erased since; else the log is
    enough. While another process does it, there is nothing to do, unless facts were erased. Raises
    `SharedSnapshotsUnavailable`.
    """
    folder = folder_of(session, settings)
    if folder is None:
        return
    with opened(settings.index_directory / folder.name, keyset_id, dim) as (manifest, stream):
        snapshot = _described(session, manifest, stream.seek(0, 2))
        stream.seek(0)
        if not (anyway or _is_due(session, keyset_id, snapshot)) or not _turn(session, keyset_id):
            return
        there = noted(session).get(keyset_id)  # as whoever had the turn before left it
        is_older = there is not None and there.applied_seq > snapshot.applied_seq
        if is_older or is_outlived(session, snapshot):
            return
        if anyway or _is_due(session, keyset_id, snapshot):
            folder.put(snapshot.file, stream)
            note = update(KeysetRow).where(KeysetRow.id == keyset_id)
            session.execute(note.values(shared_snapshot=asdict(snapshot)))
            prune(session, folder)


def _described(session: Session, manifest: dict[str, Any], num_bytes: int) -> SharedSnapshot:
    seq = int(manifest["applied_seq"])
    fields = {name: manifest[name] for name in ("file", "sha256", "spec", "count")}
    return SharedSnapshot(
        num_bytes=num_bytes, applied_seq=seq, log_hash=audit.hash_at(session, seq), **fields
    )


def _is_due(session: Session, keyset_id: int, snapshot: SharedSnapshot) -> bool:
    there = noted(session).get(keyset_id)
    if there is None or is_outlived(session, there):
        return True
    return Extent.of(snapshot).is_far_ahead(Extent.of(there))


def _turn(session: Session, keyset_id: int) -> bool:
    """Takes this process's turn to write, for which it waits where facts were erased."""
    there = noted(session).get(keyset_id)
    if there is None or not is_outlived(session, there):
        return is_mine(session, keyset_id)
    wait_until_mine(session, keyset_id)
    return True


def await_turns(session: Session) -> None:
    """Waits until nobody writes there who began before an erasure that is committed; nobody begins so later."""
    for keyset_id in session.scalars(
        select(KeysetRow.id).where(KeysetRow.state != "retired").order_by(KeysetRow.id)
    ):
        wait_until_mine(session, keyset_id)


def prune(session: Session, folder: SharedFolder) -> None:
    """Removes what is left over there, unless another process is just writing it. The turns last to the end."""
    ids = {int(found[1]) for name in left_over(session, folder) if (found := FILE.fullmatch(name))}
    turns = {keyset_id for keyset_id in sorted(ids) if is_mine(session, keyset_id)}
    names = left_over(session, folder) if turns else ()  # again, now that nobody else writes
    folder.remove(name for name in names if (found := FILE.fullmatch(name)) and int(found[1]) in turns)
