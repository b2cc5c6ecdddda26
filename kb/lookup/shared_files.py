"""The folder of one base in the place that many servers share: a directory, or object storage by fsspec.

Only this file imports fsspec, and only where a place is named. Credentials are the environment's, as the libraries of
each kind of storage read them. What lies there is never believed: whoever reads a file knows from the database what it
has to be.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from colmlm.kb.errors import SharedSnapshotsUnavailable

BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """The folder `name` in the shared `place`. Each verb raises `SharedSnapshotsUnavailable`."""

    place: str
    name: str

    @property
    def where(self) -> str:
        return f"{self.place.rstrip('/')}/{self.name}"

    def put(self, name: str, stream: IO[bytes]) -> None:
        """Writes a file there, over one that is there. Nobody reads it before the database names it."""
        with self._reached() as (storage, root):
            if _is_local(storage):  # keys are their owner's alone
                Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
            with storage.open(f"{root}/{name}", "wb") as target:
                shutil.copyfileobj(stream, target, BLOCK)

    def get(self, name: str, to: Path, num_bytes: int) -> None:
        """Copies a file from there, unless its size is not `num_bytes`."""
        with self._reached() as (storage, root):
            if (size := storage.size(f"{root}/{name}")) != num_bytes:
                raise OSError(f"{name} has {size} bytes and not {num_bytes}")
            storage.get_file(f"{root}/{name}", str(to))

    def names(self) -> list[str]:
        with self._reached() as (storage, root):
            try:
                return sorted(str(path).rpartition("/")[2] for path in storage.ls(root, detail=False))
            except FileNotFoundError:  # nothing was put there yet
                return []

    def remove(self, names: Iterable[str]) -> None:
        with self._reached() as (storage, root):
            for name in names:
                try:
                    storage.rm_file(f"{root}/{name}")
                except FileNotFoundError:  # another process removed it
                    continue

    @contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        with self._reached() as (storage, root), storage.open(f"{root}/{name}", "rb") as stream:
            yield stream

    def size(self, name: str) -> int:
        with self._reached() as (storage, root):
            return int(storage.size(f"{root}/{name}"))

    @contextmanager
    def _reached(self) -> Iterator[tuple[Any, str]]:
        """Gives the storage and the folder's path there, and explains whatever the storage's library raises."""
        try:
            from fsspec.core import url_to_fs

            storage, root = url_to_fs(self.where)
            storage.invalidate_cache()  # other machines write there
            yield storage, root.rstrip("/")
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise SharedSnapshotsUnavailable(self.where, cause) from error


def _is_local(storage: Any) -> bool:
    protocols = storage.protocol
    return "file" in ((protocols,) if isinstance(protocols, str) else protocols)
