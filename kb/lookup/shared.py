"""Shared snapshots: one process builds an index, and the others fetch its snapshot from a place that all of them reach.

The database records the place, file name, size and digest of each keyset's shared snapshot. So no file is trusted for
its name, and a process that is configured with another place than the servers notices it.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from sqlalchemy import ColumnElement, event, exists, null, select, true, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from colmlm.kb.errors import KBError, SharedSnapshotsUnavailable, count_of
from colmlm.kb.keys import records
from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.log import audit
from colmlm.kb.lookup.snapshot_files import Readable, open_snapshot_file, sha256_of
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import has_turn, wait_for_turn
from colmlm.kb.tables import ChangeRow, KeysetRow

FAR_AHEAD = 10_000  # changes: catching up with so many takes seconds, and so does fetching a snapshot
FILE = re.compile(r"keyset-(\d+)-seq-\d+-[0-9a-f]{16}\.faiss")


@dataclass(frozen=True, slots=True)
class SnapshotExtent:
    """The content of a snapshot: its kind of index (`spec`), its number of keys (`count`), its last change."""

    spec: str
    count: int
    applied_seq: int

    @classmethod
    def of(cls, described: Any) -> SnapshotExtent:
        return cls(described.spec, described.count, described.applied_seq)

    def is_far_ahead(self, other: SnapshotExtent) -> bool:
        """Say whether fetching this snapshot takes less work than catching up from the other one by the log."""
        changes, keys = self.applied_seq - other.applied_seq, abs(self.count - other.count)
        is_larger = 10 * keys > max(self.count, other.count)
        return changes >= 0 and (changes >= FAR_AHEAD or is_larger or self.spec != other.spec)


def folder_of(session: Session, settings: Settings) -> SharedFolder | None:
    """Give the folder of this base in the shared place; None where the settings name no place."""
    if settings.shared_snapshots is None:
        return None
    return SharedFolder(settings.shared_snapshots, audit.database_id(session))


def noted_snapshots(session: Session) -> dict[int, SharedSnapshot]:
    """Give the recorded shared snapshot of each keyset in use, if its last change is in this log with that hash."""
    return {
        n: one
        for n, one in _read_snapshots(session, KeysetRow.state != "retired").items()
        if one.log_hash == audit.change_hash_or_genesis(session, one.applied_seq)
    }


def named_snapshots(session: Session) -> dict[int, SharedSnapshot]:
    """Give every shared snapshot that the database records, by keyset, also those of retired keysets."""
    return _read_snapshots(session, true())


def _read_snapshots(session: Session, condition: ColumnElement[bool]) -> dict[int, SharedSnapshot]:
    columns = KeysetRow.id, KeysetRow.shared_snapshot, KeysetRow.whole_shared_snapshot
    read = {
        n: records.read_stored(SharedSnapshot, *said)
        for n, *said in session.execute(select(*columns).where(condition))
    }
    return {keyset_id: one for keyset_id, one in read.items() if one is not None}


def describe_unset_shared_place(session: Session, settings: Settings) -> str | None:
    """Describe where servers share snapshots, if this process's settings name no place; otherwise give None."""
    found = sorted({one.place or "a place" for one in named_snapshots(session).values()})
    if settings.shared_snapshots is not None or not found:
        return None
    return f"servers share snapshots at {', '.join(found)}, and COLMLM_SHARED_SNAPSHOTS is not set here"


def snapshot_doubts(session: Session, folder: SharedFolder) -> dict[int, str]:
    """Give a warning, by keyset, for each shared snapshot that is recorded elsewhere or missing from this folder."""
    files = set(folder.names())
    settled = removed_snapshots(session, folder, files)
    found = {n: _doubt(folder, one, files) for n, one in named_snapshots(session).items() if n not in settled}
    return {
        keyset_id: _about_snapshot(keyset_id, said) for keyset_id, said in found.items() if said is not None
    }


def removed_snapshots(session: Session, folder: SharedFolder, files: Collection[str]) -> set[int]:
    """Give the retired keysets whose snapshot is gone from this folder but still recorded in the database.

    Another recorded snapshot has to be there, which shows that the folder is the right one.
    """
    if not any(one.file in files for one in named_snapshots(session).values()):
        return set()
    retired = _read_snapshots(session, KeysetRow.state == "retired").items()
    return {n for n, one in retired if one.file not in files and one.place in (None, folder.address)}


def _doubt(folder: SharedFolder, shared: SharedSnapshot, files: Collection[str]) -> str | None:
    if shared.place not in (None, folder.address):
        return (
            f"the database knows it at {shared.place}, and COLMLM_SHARED_SNAPSHOTS is {folder.address} here"
        )
    if shared.file not in files:
        return f"{shared.file}, which the database names, is not there; is the place mounted?"
    return None


def reason_to_stay(session: Session, folder: SharedFolder, shared: SharedSnapshot | None) -> str | None:
    """Give the reason why this process must not replace a keyset's shared snapshot; None where it may.

    One that is missing from this folder may be replaced, unless it may hold erased keys.
    """
    if shared is None or (said := _doubt(folder, shared, folder.names())) is None:
        return None
    is_here = shared.place in (None, folder.address)
    return None if is_here and not may_hold_erased_keys(session, shared) else said


def _about_snapshot(keyset_id: int, said: str) -> str:
    return f"shared snapshot of keyset {keyset_id}: {said}"


def may_hold_erased_keys(session: Session, shared: SharedSnapshot) -> bool:
    """Say whether facts were erased since this snapshot, so that it may hold their keys."""
    erased = exists().where(ChangeRow.seq > shared.applied_seq, ChangeRow.kind == "erase")
    return bool(session.scalar(select(erased)))


def is_snapshot_old(session: Session, changes: int = FAR_AHEAD) -> bool:
    """Say whether the active keyset has a shared snapshot that is at least so many `changes` behind the log."""
    active = session.scalar(select(KeysetRow.id).where(KeysetRow.state == "active"))
    there = noted_snapshots(session).get(active or 0)
    return there is not None and audit.head_seq(session) - there.applied_seq >= changes


def leftover_files(session: Session, folder: SharedFolder) -> tuple[str, ...]:
    """List the snapshot files of no keyset in use: left by writers that died, or by keysets that were retired."""
    files = {one.file for one in noted_snapshots(session).values()}
    return tuple(name for name in folder.names() if FILE.fullmatch(name) and name not in files)


def list_leftovers(session: Session, folder: SharedFolder, uploads: UnfinishedUploads) -> tuple[str, ...]:
    """Name the leftover files, and the parts of unfinished uploads."""
    parts = (f"{name} (parts of it)" for name in uploads.names if FILE.fullmatch(name))
    return (*leftover_files(session, folder), *parts)


def list_faults(session: Session, folder: SharedFolder) -> dict[int, str]:
    """Read every shared snapshot, and describe by keyset each that is unusable or may hold erased keys."""
    found = snapshot_doubts(session, folder)
    for keyset_id, one in noted_snapshots(session).items():
        if keyset_id in found:
            continue
        if may_hold_erased_keys(session, one):
            found[keyset_id] = _about_snapshot(keyset_id, "is from before an erasure")
        elif not folder.holds(one.file, one.num_bytes, one.sha256):
            found[keyset_id] = _about_snapshot(keyset_id, f"{one.file} does not have its digest")
    return found


# The folder of one base in the place that many servers share: a directory, or object storage by fsspec.
#
# Only this file imports fsspec, and only where a place is named. Credentials are the environment's, as the
# libraries of each kind of storage read them. What lies there is never believed: whoever reads a file knows
# from the database what it has to be.
#
# The place itself is never made, or a directory that is not mounted would be taken for an empty one.

BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class UnfinishedUploads:
    """The names of files whose upload never finished, or the reason why storage does not list them, `unlisted`."""

    names: tuple[str, ...] = ()
    unlisted: str | None = None


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """The folder `name` in the shared `place`. Each method raises `SharedSnapshotsUnavailable` if storage fails."""

    place: str
    name: str

    @property
    def address(self) -> str:
        """The place in the one spelling in which the database records it."""
        path = self.place.removeprefix("file://") if self.place.startswith("file:///") else self.place
        return path.rstrip("/")

    @property
    def where(self) -> str:
        return f"{self.address}/{self.name}"

    def make(self) -> None:
        """Make the folder, if the place is in a file system. Object storage has no folders to make."""
        with self._reach_storage() as (storage, root):
            if _is_local(storage):
                _require_place(storage, root)
                Path(root).mkdir(mode=0o700, exist_ok=True)  # keys are their owner's alone

    def is_made(self) -> bool:
        with self._reach_storage() as (storage, root):
            return not _is_local(storage) or Path(root).is_dir()

    def put(self, name: str, stream: IO[bytes]) -> None:
        """Write a file into the folder, over one of the same name. Nobody reads it before the database names it."""
        with self._open_file(name, "wb") as target:
            shutil.copyfileobj(stream, target, BLOCK)

    def get(self, name: str, to: Path, num_bytes: int) -> None:
        """Copy a file from the folder to a local path. Raises also if its size is not `num_bytes`."""
        if (size := self.size(name)) != num_bytes:
            cause = f"{name} has {count_of(size, 'byte')} and not {num_bytes}"
            raise SharedSnapshotsUnavailable(self.where, cause)
        with self.reading(name) as stream, to.open("wb") as target:
            while block := stream.read(BLOCK):
                target.write(block)

    def holds(self, name: str, num_bytes: int, sha256: str) -> bool:
        """Say whether the folder has a file of this name, size and digest."""
        if name not in self.names() or self.size(name) != num_bytes:
            return False
        with self.reading(name) as stream:
            return sha256_of(stream) == sha256

    def names(self) -> list[str]:
        with self._reach_storage() as (storage, root):
            try:
                return sorted(str(path).rpartition("/")[2] for path in storage.ls(root, detail=False))
            except FileNotFoundError:
                _require_place(storage, root)
                return []  # nothing was put there yet

    def remove(self, names: Iterable[str]) -> None:
        with self._reach_storage() as (storage, root):
            for name in names:
                try:
                    storage.rm_file(f"{root}/{name}")
                except FileNotFoundError:  # another process removed it
                    continue

    def unfinished_uploads(self) -> UnfinishedUploads:
        """List the files whose upload to S3 never finished. S3 keeps their parts and does not list them as files."""
        with self._reach_storage() as (storage, root):
            try:
                return UnfinishedUploads(tuple(sorted({_name(upload) for upload in _uploads(storage, root)})))
            except PermissionError as error:
                return UnfinishedUploads(
                    unlisted=f"{self.where}: parts of unfinished uploads may not be listed: {error}"
                )

    def abort(self, names: Iterable[str]) -> None:
        """Drop the unfinished uploads of these files, as far as permitted. `unfinished_uploads` lists the others."""
        wanted = set(names)
        with self._reach_storage() as (storage, root), suppress(PermissionError):
            for upload in _uploads(storage, root) if wanted else ():
                if _name(upload) in wanted:
                    found = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    storage.call_s3("abort_multipart_upload", Bucket=storage.split_path(root)[0], **found)

    @contextmanager
    def reading(self, name: str) -> Iterator[Readable]:
        with self._open_file(name, "rb") as stream:
            yield stream

    def size(self, name: str) -> int:
        with self._reach_storage() as (storage, root):
            return int(storage.size(f"{root}/{name}"))

    @contextmanager
    def _open_file(self, name: str, mode: str) -> Iterator[_SharedFile]:
        """Open a file of the folder. Errors of the storage are translated, and those of the block are not."""
        with self._reach_storage() as (storage, root):
            there = _SharedFile(self, storage.open(f"{root}/{name}", mode))
        try:
            yield there
        finally:
            there.close()

    @contextmanager
    def _reach_storage(self) -> Iterator[tuple[Any, str]]:
        """Give the storage and the folder's path in it. The block may only call storage: its errors are translated."""
        with self._explain_errors():
            from fsspec.core import url_to_fs

            storage, root = url_to_fs(self.where)
            storage.invalidate_cache()  # other machines write there
            yield storage, root.rstrip("/")

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Raise `SharedSnapshotsUnavailable` for any error of the block: each library has errors of its own."""
        try:
            yield
        except Exception as error:  # fsspec's storages have errors of their own, with no class in common
            cause = f"{type(error).__name__}: {error}"
            raise SharedSnapshotsUnavailable(self.where, cause) from error


@dataclass(frozen=True, slots=True)
class _SharedFile:
    """An open file of a shared folder. It is read and written over a network, so each call may fail."""

    folder: SharedFolder
    file: Any

    def read(self, size: int = -1, /) -> bytes:
        with self.folder._explain_errors():
            return bytes(self.file.read(size))

    def write(self, data: bytes, /) -> int:
        with self.folder._explain_errors():
            return int(self.file.write(data))

    def close(self) -> None:
        with self.folder._explain_errors():
            self.file.close()


def _name(upload: Any) -> str:
    return str(upload["Key"]).rpartition("/")[2]


def _is_local(storage: Any) -> bool:
    return "file" in _protocols(storage)


def _protocols(storage: Any) -> tuple[str, ...]:
    protocols = storage.protocol
    return (protocols,) if isinstance(protocols, str) else tuple(protocols)


def _require_place(storage: Any, root: str) -> None:
    """Raise `FileNotFoundError` unless the place of the folder exists, so that only the folder itself is missing."""
    if _is_local(storage):
        if not (place := Path(root).parent).is_dir():
            raise FileNotFoundError(f"{place} is no directory that is there; make it, or mount it")
    elif "memory" not in _protocols(storage):
        bucket = root.partition("/")[0]
        try:
            storage.info(bucket)
        except (
            PermissionError
        ):  # who may only list the folder cannot ask, and a bucket that is refused is there
            return
        except FileNotFoundError as error:  # which may say no more than "Not Found"
            raise FileNotFoundError(f"there is no bucket {bucket}; make it") from error


def _uploads(storage: Any, root: str) -> Iterator[Any]:
    """Yield S3's records of unfinished uploads below the folder; none for other storage, which cannot list them."""
    if "s3" not in _protocols(storage):
        return
    bucket, folder, _ = storage.split_path(root)
    begin: dict[str, str] = {}
    while True:
        page = storage.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{folder}/", **begin)
        yield from page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return
        begin = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


# Sharing: copies a keyset's snapshot from the index directory to the shared place, and removes what is left
# over.
#
# Of several processes one at a time does so (`_take_turns`), and never with a snapshot that is older than what is
# there, or it could bring back what was erased.

_log = logging.getLogger(__name__)


def publish_snapshot(
    session: Session,
    keyset_id: int,
    dim: int,
    settings: Settings,
    *,
    anyway: bool = False,
    must: bool = False,
) -> bool:
    """Copy the keyset's snapshot from the index directory to the shared place, where that is due, or `anyway`.

    It is due where no snapshot is shared, where this one is far ahead of it, and where facts were erased since. While
    another process publishes one it does nothing, unless it `must`: then it waits for its turn. Gives False, and copies
    nothing, where facts were erased after this snapshot was written. Raises `SharedSnapshotsUnavailable`.
    """
    folder = folder_of(session, settings)
    if folder is None:
        return True
    with open_snapshot_file(settings.index_directory / folder.name, keyset_id, dim) as (manifest, stream):
        snapshot = _describe_snapshot(session, folder, manifest, stream.seek(0, 2))
        stream.seek(0)
        if not (anyway or _is_due(session, keyset_id, snapshot)) or not _take_turn(session, keyset_id, must):
            return True
        there = noted_snapshots(session).get(keyset_id)  # as whoever had the turn before left it
        if may_hold_erased_keys(session, snapshot):
            return False
        is_older = there is not None and there.applied_seq > snapshot.applied_seq
        if not is_older and (anyway or _is_due(session, keyset_id, snapshot)):
            _put(session, keyset_id, folder, snapshot, stream)
        return True


def _put(
    session: Session, keyset_id: int, folder: SharedFolder, snapshot: SharedSnapshot, stream: IO[bytes]
) -> None:
    """Write the snapshot's file and record it. The file that it replaces is removed after the commit.

    Only the first snapshot of a base makes the folder, so that none is made where the place is not mounted.
    """
    known = named_snapshots(session)
    if (said := reason_to_stay(session, folder, known.get(keyset_id))) is not None:
        raise SharedSnapshotsUnavailable(folder.where, said)
    if not known:
        folder.make()
    elif not folder.is_made():
        raise SharedSnapshotsUnavailable(
            folder.where,
            "the folder of this knowledge base does not exist there. Mount its disk. If the folder is lost, run "
            "`colmlm doctor --data --repair`, which makes it again",
        )
    if not folder.holds(snapshot.file, snapshot.num_bytes, snapshot.sha256):  # somebody may be reading it
        folder.put(snapshot.file, stream)
    note = update(KeysetRow).where(KeysetRow.id == keyset_id)
    readable, whole = records.former_release_fields(snapshot), asdict(snapshot)
    session.execute(note.values(shared_snapshot=readable, whole_shared_snapshot=whole))
    event.listen(session, "after_commit", partial(_prune_after, folder), once=True)


def _prune_after(folder: SharedFolder, session: Session) -> None:
    try:
        with Session(session.get_bind()) as later, later.begin():
            prune_snapshots(later, folder)
    except (KBError, SQLAlchemyError) as error:  # an erasure, or a repair, looks again
        _log.warning("former snapshots were not removed from the shared place: %s", error)


def _describe_snapshot(
    session: Session, folder: SharedFolder, manifest: dict[str, Any], num_bytes: int
) -> SharedSnapshot:
    seq = int(manifest["applied_seq"])
    fields = {name: manifest[name] for name in ("file", "sha256", "spec", "count")}
    return SharedSnapshot(
        num_bytes=num_bytes,
        applied_seq=seq,
        log_hash=audit.change_hash_or_genesis(session, seq),
        place=folder.address,
        **fields,
    )


def _is_due(session: Session, keyset_id: int, snapshot: SharedSnapshot) -> bool:
    there = noted_snapshots(session).get(keyset_id)
    if there is None or may_hold_erased_keys(session, there):
        return True
    return SnapshotExtent.of(snapshot).is_far_ahead(SnapshotExtent.of(there))


def _take_turn(session: Session, keyset_id: int, must: bool) -> bool:
    """Take this process's turn to write a keyset's snapshot, and say whether it has it. It waits if it `must`."""
    if not must:
        return has_turn(session, keyset_id)
    wait_for_turn(session, keyset_id)
    return True


def await_turns(session: Session) -> None:
    """Wait for each process that now writes a shared snapshot: it may have begun before an erasure."""
    for keyset_id in session.scalars(
        select(KeysetRow.id).where(KeysetRow.state != "retired").order_by(KeysetRow.id)
    ):
        wait_for_turn(session, keyset_id)


def prune_snapshots(session: Session, folder: SharedFolder) -> None:
    """Remove leftover files and unfinished uploads from the folder, except those that another process is writing.

    The turns last to the end of the transaction. Files go first: they hold whole indexes, and listing uploads may fail.
    """
    turns = _take_turns(session, leftover_files(session, folder))
    names = [
        name for name in leftover_files(session, folder) if _keyset_of(name) in turns
    ]  # now nobody writes
    folder.remove(names)
    forget_snapshots(session, [n for n, one in named_snapshots(session).items() if one.file in names])
    forget_snapshots(
        session, [n for n in removed_snapshots(session, folder, folder.names()) if has_turn(session, n)]
    )
    parts = folder.unfinished_uploads().names
    if turns := _take_turns(session, parts):
        folder.abort(name for name in folder.unfinished_uploads().names if _keyset_of(name) in turns)


def _take_turns(session: Session, names: Iterable[str]) -> set[int]:
    """Take this process's turns for the keysets of these files, and give the ids of those whose turn was free."""
    ids = {keyset_id for keyset_id in map(_keyset_of, names) if keyset_id is not None}
    return {keyset_id for keyset_id in sorted(ids) if has_turn(session, keyset_id)}


def forget_snapshots(session: Session, keyset_ids: Iterable[int]) -> None:
    """Remove the records of these keysets' shared snapshots from the database. Their files stay."""
    note = update(KeysetRow).where(KeysetRow.id.in_(list(keyset_ids)))
    session.execute(note.values(shared_snapshot=null(), whole_shared_snapshot=null()))


def _keyset_of(name: str) -> int | None:
    """Give the keyset id in the name of a snapshot file; None for any other file."""
    found = FILE.fullmatch(name)
    return found and int(found[1])
