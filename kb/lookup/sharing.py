"""Sharing: copies a keyset's snapshot from the index directory to the shared place, and removes what is left over.

Of several processes one at a time does so (`turns`), and never with a snapshot that is older than what is there, or it
could bring back what was erased.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import IO, Any

from sqlalchemy import event, null, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from colmlm.kb.errors import KBError, SharedSnapshotsUnavailable
from colmlm.kb.keys import stored
from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.log import audit
from colmlm.kb.lookup.shared import (
    FILE,
    Extent,
    folder_of,
    is_outlived,
    left_over,
    must_stay,
    named,
    noted,
    removed,
)
from colmlm.kb.lookup.shared_files import SharedFolder
from colmlm.kb.lookup.snapshot_files import opened
from colmlm.kb.lookup.turns import is_mine, wait_until_mine
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import KeysetRow

_log = logging.getLogger(__name__)


def publish(
    session: Session,
    keyset_id: int,
    dim: int,
    settings: Settings,
    *,
    anyway: bool = False,
    must: bool = False,
) -> bool:
    """Copies the keyset's snapshot from the index directory to the shared place, where that is due, or `anyway`.

    It is due where none is there, where this is far ahead of it, and where facts were erased since; else the log is
    enough. While another process does it, there is nothing to do, unless it `must` be done: then this waits. Says False
    where facts were erased after this snapshot was written, so that it must not be there. Raises
    `SharedSnapshotsUnavailable`.
    """
    folder = folder_of(session, settings)
    if folder is None:
        return True
    with opened(settings.index_directory / folder.name, keyset_id, dim) as (manifest, stream):
        snapshot = _described(session, folder, manifest, stream.seek(0, 2))
        stream.seek(0)
        if not (anyway or _is_due(session, keyset_id, snapshot)) or not _turn(session, keyset_id, must):
            return True
        there = noted(session).get(keyset_id)  # as whoever had the turn before left it
        if is_outlived(session, snapshot):
            return False
        is_older = there is not None and there.applied_seq > snapshot.applied_seq
        if not is_older and (anyway or _is_due(session, keyset_id, snapshot)):
            _put(session, keyset_id, folder, snapshot, stream)
        return True


def _put(
    session: Session, keyset_id: int, folder: SharedFolder, snapshot: SharedSnapshot, stream: IO[bytes]
) -> None:
    """Writes the snapshot and notes it. What it replaces goes after the commit: until then it is what others are told.

    Only the first snapshot of a base has its folder made, so that it is not made where the place is not mounted.
    """
    known = named(session)
    if (said := must_stay(session, folder, known.get(keyset_id))) is not None:
        raise SharedSnapshotsUnavailable(folder.where, said)
    if not known:
        folder.make()
    elif not folder.is_made():
        raise SharedSnapshotsUnavailable(folder.where, "the folder of this base is not there; is it mounted?")
    if not folder.holds(snapshot.file, snapshot.num_bytes, snapshot.sha256):  # somebody may be reading it
        folder.put(snapshot.file, stream)
    note = update(KeysetRow).where(KeysetRow.id == keyset_id)
    readable, whole = stored.known_before(snapshot), asdict(snapshot)
    session.execute(note.values(shared_snapshot=readable, whole_shared_snapshot=whole))
    event.listen(session, "after_commit", partial(_prune_after, folder), once=True)


def _prune_after(folder: SharedFolder, session: Session) -> None:
    try:
        with Session(session.get_bind()) as later, later.begin():
            prune(later, folder)
    except (KBError, SQLAlchemyError) as error:  # an erasure, or a repair, looks again
        _log.warning("former snapshots were not removed from the shared place: %s", error)


def _described(
    session: Session, folder: SharedFolder, manifest: dict[str, Any], num_bytes: int
) -> SharedSnapshot:
    seq = int(manifest["applied_seq"])
    fields = {name: manifest[name] for name in ("file", "sha256", "spec", "count")}
    return SharedSnapshot(
        num_bytes=num_bytes,
        applied_seq=seq,
        log_hash=audit.hash_at(session, seq),
        place=folder.address,
        **fields,
    )


def _is_due(session: Session, keyset_id: int, snapshot: SharedSnapshot) -> bool:
    there = noted(session).get(keyset_id)
    if there is None or is_outlived(session, there):
        return True
    return Extent.of(snapshot).is_far_ahead(Extent.of(there))


def _turn(session: Session, keyset_id: int, must: bool) -> bool:
    """Takes this process's turn to write. A server that ends waits for nobody: an erasure looks after the rest."""
    if not must:
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
    """Removes what is left over there, unless another process is just writing it. The turns last to the end.

    Files go first: they hold whole indexes, and who may remove them may not always see the parts of uploads.
    """
    turns = _turns(session, left_over(session, folder))
    names = [name for name in left_over(session, folder) if _keyset_of(name) in turns]  # now nobody writes
    folder.remove(names)
    forget(session, [n for n, one in named(session).items() if one.file in names])
    forget(session, [n for n in removed(session, folder, folder.names()) if is_mine(session, n)])
    parts = folder.unfinished().names
    if turns := _turns(session, parts):
        folder.abort(name for name in folder.unfinished().names if _keyset_of(name) in turns)


def _turns(session: Session, names: Iterable[str]) -> set[int]:
    """Takes this process's turn for the keysets of these files, but of those that another process is just writing."""
    ids = {keyset_id for keyset_id in map(_keyset_of, names) if keyset_id is not None}
    return {keyset_id for keyset_id in sorted(ids) if is_mine(session, keyset_id)}


def forget(session: Session, keyset_ids: Iterable[int]) -> None:
    """Has the database name no shared snapshot of these keysets."""
    note = update(KeysetRow).where(KeysetRow.id.in_(list(keyset_ids)))
    session.execute(note.values(shared_snapshot=null(), whole_shared_snapshot=null()))


def _keyset_of(name: str) -> int | None:
    """Gives the keyset that a file's name says; None for a file of somebody else."""
    found = FILE.fullmatch(name)
    return found and int(found[1])
