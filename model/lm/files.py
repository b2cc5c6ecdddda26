"""Files that are checked against their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path


def file_digest(path: Path) -> str:
    """Computes the SHA-256 of a file, in hexadecimal (270 MB take 0.2 seconds)."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def damaged(directory: Path, digests: Mapping[str, str]) -> str | None:
    """Gives the name of the first file in `directory` that is missing or has another digest than the one recorded."""
    for name, digest in digests.items():
        if not (directory / name).is_file() or file_digest(directory / name) != digest:
            return name
    return None
