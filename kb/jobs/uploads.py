"""Uploaded files: each is kept in a folder of the home, named by its id, until the job that reads it is over.

The id is random, so that only whoever uploaded the file knows it. Workers must see the same home as the server.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from colmlm.kb.errors import InvalidValue, refusals
from colmlm.kb.jobs.kinds import uploads_of
from colmlm.kb.store.settings import Settings

UNCLAIMED_SECONDS = 24 * 3600.0

WAITING_AT_ONCE = 4  # all uploads together may take so many times the size of the largest one

_ID = re.compile(r"[0-9a-f]{32}")

_UNFINISHED = ".part"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was uploaded completely."""

    upload_id: str
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Uploads:
    """The uploads of a home. `max_bytes` limits one; all together may take `WAITING_AT_ONCE` times as much."""

    directory: Path
    max_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.home / "uploads", settings.upload_max_mb * 1_000_000)

    def save(self, name: str, blocks: Iterable[bytes]) -> Upload:
        """Store a file that arrives in blocks. Raises `UploadTooLarge`, or `InvalidValue` for a bad name."""
        with self.receive(name) as receiving:
            for block in blocks:
                receiving.write(block)
        return receiving.upload

    @contextmanager
    def receive(self, name: str) -> Iterator[Receiving]:
        """Give an object to write the blocks to, which has an `upload` once the `with` block ends without an error."""
        _check_name(name)
        upload_id = secrets.token_hex(16)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self.directory / upload_id
        folder.mkdir(mode=0o700)
        partial = folder / _UNFINISHED
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                receiving = Receiving(
                    stream, upload_id, name, min(self.max_bytes, self._free()), self.max_bytes
                )
                yield receiving
            partial.rename(folder / name)
        except BaseException:  # also where the request is broken off: half of a file must not be found
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def file(self, upload_id: str) -> Path:
        """Give the path of an upload. Raises `UploadNotFound`."""
        folder = self.directory / upload_id
        found = (
            [path for path in folder.glob("*") if path.name != _UNFINISHED]
            if _ID.fullmatch(upload_id)
            else []
        )
        if len(found) != 1:
            raise refusals.upload_not_found(upload_id)
        return found[0]

    def remove(self, upload_ids: Iterable[str]) -> None:
        """Remove these uploads. Those that are gone already are passed over."""
        for upload_id in upload_ids:
            if _ID.fullmatch(upload_id):
                shutil.rmtree(self.directory / upload_id, ignore_errors=True)

    def discard(self, kind: str, arguments: Mapping[str, Any]) -> None:
        """Remove the uploads of a job that is over, which its arguments name."""
        self.remove(uploads_of(kind, arguments))

    def sweep(self, claimed: Iterable[str], older_than: float = UNCLAIMED_SECONDS) -> int:
        """Remove the uploads of more than `older_than` seconds ago that are not `claimed` by a job, and count them."""
        if not self.directory.is_dir():
            return 0
        keep, limit = set(claimed), time.time() - older_than
        unclaimed = [folder for folder in self.directory.iterdir() if folder.name not in keep]
        return sum(_remove_old_folder(folder, limit) for folder in unclaimed)

    def _free(self) -> int:
        """Give how many bytes may still be uploaded in all."""
        kept = sum(path.stat().st_size for path in self.directory.glob("*/*"))
        return max(0, WAITING_AT_ONCE * self.max_bytes - kept)


@dataclass(slots=True)
class Receiving:
    """A file that is being uploaded. Any file has at most `max_bytes`, and `limit` bytes are left for all."""

    stream: IO[bytes]
    upload_id: str
    name: str
    limit: int
    max_bytes: int
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def write(self, block: bytes) -> None:
        self.size += len(block)
        if self.size > self.max_bytes:
            raise refusals.upload_too_large(f"The file has more than {self.max_bytes // 1_000_000} MB")
        if self.size > self.limit:
            raise refusals.upload_too_large(
                "Other uploads that wait for their jobs leave no room for this file"
            )
        self.digest.update(block)
        self.stream.write(block)

    @property
    def upload(self) -> Upload:
        return Upload(self.upload_id, self.name, self.size, self.digest.hexdigest())


def _check_name(name: str) -> None:
    """Raise `InvalidValue` for what is no plain file name, since the stored file and a document get this name."""
    sound = name.isprintable() and not name.startswith(".") and name.strip() == name
    if not sound or not 0 < len(name.encode("utf-8", "replace")) <= 200 or any(c in name for c in "/\\"):
        raise InvalidValue(
            "name of the upload",
            "it must be a file's name, of at most 200 bytes, without a path or a leading dot",
        )


def _remove_old_folder(folder: Path, limit: float) -> bool:
    """Remove an upload's folder that was last changed before `limit`, and say whether it was. A failure is logged.

    The folder is then left for the next time, since one that another worker removes meanwhile must not keep the others.
    """
    try:
        if not folder.is_dir() or folder.stat().st_mtime >= limit:
            return False
        shutil.rmtree(folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        from colmlm.kb.store import waits  # imports the database driver, which clients that upload do without

        waits.log_outage(_log, "an upload that nobody waits for cannot be removed", error)
        return False
    return True
