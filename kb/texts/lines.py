"""Reads lines of a file, plain or gzipped, and holds no more of a line than a document may have."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, NamedTuple, cast

MOST_BYTES = 100_000_000  # the most that one document may have


class Line(NamedTuple):
    """A line: its number from 1, its bytes (None where they are too many), and where it ends in the file on disk."""

    number: int
    content: bytes | None
    reached: int


def read_lines(path: Path, *, zipped: bool = False) -> Iterator[Line]:
    """Yields every line that is not blank. Raises the errors of gzip where the data are damaged."""
    with path.open("rb") as file, gzip.open(file) if zipped else nullcontext(file) as opened:
        lines, number = cast("IO[bytes]", opened), 0
        while line := lines.readline(MOST_BYTES + 1):
            number += 1
            if len(line) > MOST_BYTES:
                _skip_line(lines, line)
                yield Line(number, None, file.tell())
            elif not line.isspace():
                yield Line(number, line, file.tell())


def _skip_line(lines: IO[bytes], line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = lines.readline(MOST_BYTES)
