"""The files of a snapshot: written under a name that nothing reads yet, with a manifest that says what they must be."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMAT = 1  # version of the manifest's format


def manifest_text(fields: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return json.dumps(fields | {"manifest_sha256": digest}, indent=1)


def read_manifest(file: Path, keyset_id: int, dim: int) -> dict[str, Any]:
    text = file.read_text()
    fields: dict[str, Any] = json.loads(text)
    del fields["manifest_sha256"]
    found = fields["format"], fields["keyset_id"], fields["dim"]
    if text != manifest_text(fields) or found != (FORMAT, keyset_id, dim):
        raise ValueError(f"{file.name} is damaged, or not format {FORMAT}, keyset {keyset_id}, width {dim}")
    return fields


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def publish(temporary: Path, file: Path, directory: int) -> None:
    """Gives a written file its final name, after its bytes are on disk."""
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    temporary.replace(file)
    os.fsync(directory)


@contextmanager
def locked_directory(path: Path, mode: int) -> Iterator[int]:
    """Locks the directory against the other processes that share it, and gives its descriptor."""
    directory = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(directory, mode)
        yield directory
    finally:
        os.close(directory)
