"""Fetching: brings a keyset's shared snapshot into the index directory, where it is better than what is there."""

from __future__ import annotations

import logging
import multiprocessing
from contextlib import suppress
from pathlib import Path

from sqlalchemy.orm import Session

from colmlm.kb.errors import SharedSnapshotsUnavailable
from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.lookup.shared import Extent, SharedFolder, folder_of, noted
from colmlm.kb.lookup.snapshot_files import Described, note_history, read_manifest, replace_snapshot, sha256
from colmlm.kb.store.settings import Settings

STALLED_SECONDS = 300.0  # a large snapshot's digest is computed for a minute, in which nothing is written
ENDED_SECONDS = 5.0

_log = logging.getLogger(__name__)


def fetch_snapshot(
    session: Session, keyset_id: int, dim: int, settings: Settings, *, anyway: bool = False
) -> bool:
    """Bring a keyset's shared snapshot into the index directory where it is far ahead of what is there, or `anyway`.

    Says whether it did. What keeps it from that is logged, since the index can be built without it.
    """
    found = _wanted(session, keyset_id, dim, settings, anyway=anyway)
    return found is not None and _copied(*found, keyset_id, dim, settings)


def fetch_apart(
    session: Session, keyset_id: int, dim: int, settings: Settings, stalled_seconds: float = STALLED_SECONDS
) -> None:
    """Fetch as `fetch` does, in a process of its own, since no fork survives the threads that read object storage.

    One that has written nothing for so long is ended, since a server cannot start before it: storage may never answer.
    """
    if (found := _wanted(session, keyset_id, dim, settings)) is None:
        return
    copying = multiprocessing.get_context("fork").Process(
        target=_copied, args=(*found, keyset_id, dim, settings)
    )
    copying.start()
    directory = settings.index_directory / found[0].name
    before, now = None, _written(directory)
    while copying.is_alive() and before != now:
        copying.join(stalled_seconds)
        before, now = now, _written(directory)
    if copying.is_alive():
        copying.kill()
        _log.warning(
            "the shared snapshot of keyset %d was not fetched: nothing came for %.0f s",
            keyset_id,
            stalled_seconds,
        )
    copying.join(ENDED_SECONDS)  # one that waits for a disk that is gone cannot even be killed


def _written(directory: Path) -> dict[str, int]:
    """Give the bytes of each file in a directory, which another process is writing and renaming."""
    found = {}
    for file in directory.glob("*"):
        with suppress(FileNotFoundError):
            found[file.name] = file.stat().st_size
    return found


def _wanted(
    session: Session, keyset_id: int, dim: int, settings: Settings, *, anyway: bool = False
) -> tuple[SharedFolder, SharedSnapshot] | None:
    """Give a keyset's shared snapshot and its folder, where that is better than what is in the index directory."""
    folder, there = folder_of(session, settings), noted(session).get(keyset_id)
    if folder is None or there is None:
        return None
    here = _extent_here(settings.index_directory / folder.name, keyset_id, dim)
    is_better = anyway or here is None or Extent.of(there).is_far_ahead(here)
    return (folder, there) if is_better else None


def _copied(
    folder: SharedFolder, there: SharedSnapshot, keyset_id: int, dim: int, settings: Settings
) -> bool:
    try:
        copy_here(folder, there, keyset_id, dim, settings.index_directory / folder.name)
    except (SharedSnapshotsUnavailable, OSError) as error:
        _log.warning("the shared snapshot of keyset %d was not fetched: %s", keyset_id, error)
        return False
    _log.info("fetched the shared snapshot of keyset %d, as of change %d", keyset_id, there.applied_seq)
    return True


def copy_here(
    folder: SharedFolder, shared: SharedSnapshot, keyset_id: int, dim: int, directory: Path
) -> None:
    """Copy a shared snapshot into the index directory. Raises `SharedSnapshotsUnavailable` where its bytes differ."""

    def write(file: Path) -> Described:
        folder.get(shared.file, file, shared.num_bytes)
        if sha256(file) != shared.sha256:
            cause = f"{shared.file} does not have the digest that the database knows"
            raise SharedSnapshotsUnavailable(folder.where, cause)
        return Described(dim, shared.spec, shared.count, shared.sha256)

    replace_snapshot(directory, keyset_id, shared.applied_seq, write)
    note_history(directory, keyset_id, shared.applied_seq, shared.log_hash)


def _extent_here(directory: Path, keyset_id: int, dim: int) -> Extent | None:
    """Give how far the snapshot in the index directory is; None where there is none that can be read."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        manifest = read_manifest(directory / f"keyset-{keyset_id}.json", keyset_id, dim)
        return Extent(manifest["spec"], int(manifest["count"]), int(manifest["applied_seq"]))
    return None
