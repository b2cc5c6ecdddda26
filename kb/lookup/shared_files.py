"""The folder of one base in the place that many servers share: a directory, or object storage by fsspec.

Only this file imports fsspec, and only where a place is named. Credentials are the environment's, as the libraries of
each kind of storage read them. What lies there is never believed: whoever reads a file knows from the database what it
has to be.

The place itself is never made, or a directory that is not mounted would be taken for an empty one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from colmlm.kb.errors import SharedSnapshotsUnavailable
from colmlm.kb.lookup.snapshot_files import Readable, sha256_of

BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class UnfinishedUploads:
    """The files of which a storage keeps parts, or why it does not say of which: `unlisted`."""

    names: tuple[str, ...] = ()
    unlisted: str | None = None


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """The folder `name` in the shared `place`. Each verb raises `SharedSnapshotsUnavailable`."""

    place: str
    name: str

    @property
    def address(self) -> str:
        """The place in one spelling, by which the database knows where its snapshots are."""
        path = self.place.removeprefix("file://") if self.place.startswith("file:///") else self.place
        return path.rstrip("/")

    @property
    def where(self) -> str:
        return f"{self.address}/{self.name}"

    def make(self) -> None:
        """Makes the folder in its place, where a folder is more than how files are named."""
        with self._reached() as (storage, root):
            if _is_local(storage):
                _require_place(storage, root)
                Path(root).mkdir(mode=0o700, exist_ok=True)  # keys are their owner's alone

    def is_made(self) -> bool:
        with self._reached() as (storage, root):
            return not _is_local(storage) or Path(root).is_dir()

    def put(self, name: str, stream: IO[bytes]) -> None:
        """Writes a file there, over one that is there. Nobody reads it before the database names it."""
        with self._opened(name, "wb") as target:
            shutil.copyfileobj(stream, target, BLOCK)

    def get(self, name: str, to: Path, num_bytes: int) -> None:
        """Copies a file from there, unless its size is not `num_bytes`."""
        if (size := self.size(name)) != num_bytes:
            cause = f"{name} has {size} bytes and not {num_bytes}"
            raise SharedSnapshotsUnavailable(self.where, cause)
        with self.reading(name) as stream, to.open("wb") as target:
            while block := stream.read(BLOCK):
                target.write(block)

    def holds(self, name: str, num_bytes: int, sha256: str) -> bool:
        """Says whether a file is there with this size and this digest."""
        if name not in self.names() or self.size(name) != num_bytes:
            return False
        with self.reading(name) as stream:
            return sha256_of(stream) == sha256

    def names(self) -> list[str]:
        with self._reached() as (storage, root):
            try:
                return sorted(str(path).rpartition("/")[2] for path in storage.ls(root, detail=False))
            except FileNotFoundError:
                _require_place(storage, root)
                return []  # nothing was put there yet

    def remove(self, names: Iterable[str]) -> None:
        with self._reached() as (storage, root):
            for name in names:
                try:
                    storage.rm_file(f"{root}/{name}")
                except FileNotFoundError:  # another process removed it
                    continue

    def unfinished(self) -> UnfinishedUploads:
        """Gives the files whose upload to S3 was never finished: their parts stay, and no listing has them."""
        with self._reached() as (storage, root):
            try:
                return UnfinishedUploads(tuple(sorted({_name(upload) for upload in _uploads(storage, root)})))
            except PermissionError as error:
                return UnfinishedUploads(
                    unlisted=f"{self.where}: parts of unfinished uploads may not be listed: {error}"
                )

    def abort(self, names: Iterable[str]) -> None:
        """Drops the unfinished uploads of these files, as far as that is permitted: `unfinished` has the others."""
        wanted = set(names)
        with self._reached() as (storage, root), suppress(PermissionError):
            for upload in _uploads(storage, root) if wanted else ():
                if _name(upload) in wanted:
                    found = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    storage.call_s3("abort_multipart_upload", Bucket=storage.split_path(root)[0], **found)

    @contextmanager
    def reading(self, name: str) -> Iterator[Readable]:
        with self._opened(name, "rb") as stream:
            yield stream

    def size(self, name: str) -> int:
        with self._reached() as (storage, root):
            return int(storage.size(f"{root}/{name}"))

    @contextmanager
    def _opened(self, name: str, mode: str) -> Iterator[_There]:
        """Opens a file there. What its storage raises is explained; what the block raises is not of the storage."""
        with self._reached() as (storage, root):
            there = _There(self, storage.open(f"{root}/{name}", mode))
        try:
            yield there
        finally:
            there.close()

    @contextmanager
    def _reached(self) -> Iterator[tuple[Any, str]]:
        """Gives the storage and the folder's path there, for a block that does nothing else than to ask it."""
        with self._explained():
            from fsspec.core import url_to_fs

            storage, root = url_to_fs(self.where)
            storage.invalidate_cache()  # other machines write there
            yield storage, root.rstrip("/")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explains whatever the library of a storage raises: each has errors of its own."""
        try:
            yield
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise SharedSnapshotsUnavailable(self.where, cause) from error


@dataclass(frozen=True, slots=True)
class _There:
    """A file there. It is read and written over a network, so each call may fail."""

    folder: SharedFolder
    file: Any

    def read(self, size: int = -1, /) -> bytes:
        with self.folder._explained():
            return bytes(self.file.read(size))

    def write(self, data: bytes, /) -> int:
        with self.folder._explained():
            return int(self.file.write(data))

    def close(self) -> None:
        with self.folder._explained():
            self.file.close()


def _name(upload: Any) -> str:
    return str(upload["Key"]).rpartition("/")[2]


def _is_local(storage: Any) -> bool:
    return "file" in _protocols(storage)


def _protocols(storage: Any) -> tuple[str, ...]:
    protocols = storage.protocol
    return (protocols,) if isinstance(protocols, str) else tuple(protocols)


def _require_place(storage: Any, root: str) -> None:
    """Raises `FileNotFoundError` unless there is a place in which only the folder of this base is missing."""
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
    """Gives the unfinished uploads below the folder; other storage than S3 keeps none that could be asked for."""
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
