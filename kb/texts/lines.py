"""Reads lines of a file, plain or compressed, and holds no more of a line than a document may have."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

MOST_BYTES = 100_000_000  # the most that one document may have

_PACKED: dict[str, tuple[str, Any]] = {".gz": ("gzip", gzip.open), ".bz2": ("bzip2", bz2.open)}


class Damaged(ValueError):
    """Compressed data cannot be unpacked any further."""


class Line(NamedTuple):
    """A line: its number from 1, its bytes (None where they are too many), and where it ends in the file on disk."""

    number: int
    content: bytes | None
    reached: int


def read_lines(path: Path, place: Path | None = None) -> Iterator[Line]:
    """Yields every line that is not blank; the file is opened at `place`, by default at its path. Raises `Damaged`."""
    with (place or path).open("rb") as file, unpacked(file, path) as lines:
        number = 0
        while line := lines.readline(MOST_BYTES + 1):
            number += 1
            if len(line) > MOST_BYTES:
                _skip_line(lines, line)
                yield Line(number, None, file.tell())
            elif not line.isspace():
                yield Line(number, line, file.tell())


@contextmanager
def unpacked(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Gives what an open file holds, by its name: what is packed in it, or the file. Raises `Damaged` in the block."""
    kind, opened = _PACKED.get(path.suffix.lower(), ("", nullcontext))
    try:
        with opened(file) as stream:
            yield stream
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # what the system says of the file
            raise
        raise Damaged(f"damaged {kind} data ({error})") from error


def _skip_line(lines: IO[bytes], line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = lines.readline(MOST_BYTES)
