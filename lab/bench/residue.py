"""Searches a store's files for residue of deleted facts."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colmlm.lab.bench.synthetic import fact_text

_VALUE = re.compile(rb"value (\d{9})")
_BLOCK = 1 << 26


@dataclass(frozen=True, slots=True)
class Residue:
    """How many of the facts searched for have their value, and how many their key, in some file."""

    num_facts: int
    values: int
    keys: int


def find_residue(directory: Path, facts: Sequence[int], keys: npt.NDArray[np.float32]) -> Residue:
    """Searches every file under `directory` for the values of `facts` and for their keys, the rows of `keys`.

    It searches for values as UTF-8, and for keys as float32 or float16. Compression hides them: search for facts that
    still exist, too, and trust the result only as far as those are found.
    """
    wanted = {int(_digits(fact)): number for number, fact in enumerate(facts)}
    starts = _starts_of(keys)
    with_value: set[int] = set()
    with_key: set[int] = set()
    for content in _contents(directory):
        with_value |= {wanted[n] for m in _VALUE.finditer(content) if (n := int(m[1])) in wanted}
        with_key |= _rows_within(content, starts)
    return Residue(len(facts), len(with_value), len(with_key))


def _digits(fact: int) -> str:
    return fact_text(fact).value.removeprefix("value ")


def _contents(directory: Path) -> Iterator[mmap.mmap]:
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.stat().st_size > 0:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content


def _starts_of(keys: npt.NDArray[np.float32]) -> dict[int, int]:
    """Maps the first 8 bytes of each key in either precision, as a number, to the key's row."""
    single = np.ascontiguousarray(keys[:, :2], "<f4").view("<u8")
    half = np.ascontiguousarray(keys[:, :4], "<f2").view("<u8")
    return {int(start): row for column in (single, half) for row, start in enumerate(column[:, 0])}


def _rows_within(content: mmap.mmap, starts: dict[int, int]) -> set[int]:
    """Gives the rows whose 8 bytes occur in `content`, at any offset."""
    possible = np.zeros(1 << 16, np.bool_)  # a filter by two of the bytes, which rules out nearly everything
    possible[[start & 0xFFFF for start in starts]] = True
    rows: set[int] = set()
    for block in range(0, len(content), _BLOCK):
        piece = content[block : block + _BLOCK + 7]
        for shift in range(8):
            words = np.frombuffer(
                piece, "<u8", count=max(0, len(piece) - shift) // 8, offset=min(shift, len(piece))
            )
            likely = words[possible[words & np.uint64(0xFFFF)]]
            rows |= {starts[word] for word in likely.tolist() if word in starts}
    return rows
