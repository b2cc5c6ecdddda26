"""The files of a snapshot: an index, written under a name that nothing reads yet, and a manifest that describes it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

BLOCK = 1 << 20
FORMAT = 1  # version of the manifest's format


class Readable(Protocol):
    """A local or remote file that is open for reading."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """The record that a manifest has of the index in a file: width, spec, number of keys, and the file's digest."""

    dim: int
    spec: str
    count: int
    sha256: str


def manifest_text(fields: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return json.dumps(fields | {"manifest_sha256": digest}, indent=1)


def read_manifest(file: Path, keyset_id: int, dim: int) -> dict[str, Any]:
    text = file.read_text()
    fields: dict[str, Any] = json.loads(text)
    del fields["manifest_sha256"]
    wanted = (("format", "format", FORMAT), ("keyset_id", "keyset", keyset_id), ("dim", "dimensions", dim))
    other = [f"{said} {fields[name]}, not {value}" for name, said, value in wanted if fields[name] != value]
    if text != manifest_text(fields):
        raise ValueError(f"{file.name} is damaged")
    if other:
        raise ValueError(f"{file.name} is of another index ({'; '.join(other)})")
    return fields


def sizes_of(path: Path, keyset_id: int) -> tuple[int, int, int] | None:
    """Give a snapshot's number of keys, its bytes and its last change; None where there is none that can be read."""
    try:
        manifest = json.loads((path / f"keyset-{keyset_id}.json").read_text())
        size = (path / manifest["file"]).stat().st_size
        return int(manifest["count"]), size, int(manifest["applied_seq"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return sha256_of(stream)


def sha256_of(stream: Readable) -> str:
    digest = hashlib.sha256()
    while block := stream.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def publish_files(temporary: Path, file: Path, directory: int) -> None:
    """Give a written file its final name, after its bytes are on disk."""
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    temporary.replace(file)
    os.fsync(directory)


def replace_snapshot(
    path: Path, keyset_id: int, applied_seq: int, write: Callable[[Path], IndexRecord]
) -> None:
    """Replace this keyset's snapshot in the directory `path`; on return it is on disk and older ones are gone.

    `write` writes the file and describes it; what it raises leaves the old snapshot as it was.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path / f"keyset-{keyset_id}.tmp"  # a fixed name: the next save overwrites a crash's file
    with locked_directory(path, fcntl.LOCK_EX) as directory:
        try:
            fields: dict[str, Any] = {"format": FORMAT, "keyset_id": keyset_id, "applied_seq": applied_seq}
            fields |= asdict(write(temporary))
            # The name has the digest, because another process may save other bytes at the same seq.
            file = path / f"keyset-{keyset_id}-seq-{applied_seq}-{fields['sha256'][:16]}.faiss"
            publish_files(temporary, file, directory)
            temporary.write_text(manifest_text(fields | {"file": file.name}))
            publish_files(temporary, path / f"keyset-{keyset_id}.json", directory)
        finally:
            temporary.unlink(missing_ok=True)
        for old in set(path.glob(f"keyset-{keyset_id}-seq-*.faiss")) - {file}:
            old.unlink()
        os.fsync(directory)


def note_history(directory: Path, keyset_id: int, applied_seq: int, log_hash: str | None) -> None:
    """Write the number and the log's hash of a snapshot's last change into a file of their own."""
    history = {"seq": applied_seq, "hash": log_hash}
    history_file(directory, keyset_id).write_text(json.dumps(history))


def history_file(directory: Path, keyset_id: int) -> Path:
    return directory / f"keyset-{keyset_id}.history"


@contextmanager
def open_snapshot_file(path: Path, keyset_id: int, dim: int) -> Iterator[tuple[dict[str, Any], IO[bytes]]]:
    """Give a snapshot's manifest, and its file to read, which stays readable when another snapshot replaces it."""
    with ExitStack() as stack:
        with locked_directory(path, fcntl.LOCK_SH):
            manifest = read_manifest(path / f"keyset-{keyset_id}.json", keyset_id, dim)
            stream = stack.enter_context((path / Path(manifest["file"]).name).open("rb"))
        yield manifest, stream


@contextmanager
def locked_directory(path: Path, mode: int) -> Iterator[int]:
    """Lock the directory against the other processes that share it, and give its descriptor."""
    directory = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(directory, mode)
        yield directory
    finally:
        os.close(directory)
