"""Sealed indexes: reads the keys that somebody else's Faiss index holds, in blocks, and never changes it.

The file is mapped into memory, so that only what is being decoded takes any. Lists are read one after the other, as
they lie in the file. Where the index holds codes, the keys are what these stand for: near the keys that were added, and
not the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss as untyped_faiss
import numpy as np
import numpy.typing as npt

from colmlm.kb.errors import refusals

faiss: Any = untyped_faiss  # its type stubs lack half of the methods that SWIG generates
Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_AGAIN = "Copy the file again from where it was published, and compare their checksums."


class SealedIndex:
    """An index whose keys are numbered 0 to n-1. All methods raise `InvalidRelease`."""

    def __init__(self, file: Path) -> None:
        try:
            self._index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        except (RuntimeError, MemoryError) as error:
            raise refusals.invalid_release(f"{file.name} cannot be read as a Faiss index", _AGAIN) from error
        self.name, self._numbers = file.name, None
        if isinstance(self._index, faiss.IndexIDMap):
            self._owner = self._index  # of the index in it, which would go with it
            self._numbers = faiss.vector_to_array(self._index.id_map)
            self._index = faiss.downcast_index(self._index.index)
        self.dim, self.count = int(self._index.d), int(self._index.ntotal)
        if not 0 <= self.count <= file.stat().st_size:  # memory is taken for as many as it names
            raise refusals.invalid_release(
                f"{self.name} is too short for the {self.count} keys that it names", _AGAIN
            )
        ivf = faiss.try_extract_index_ivf(self._index)
        self._ivf: Any = None if ivf is None else faiss.downcast_index(ivf)
        if "FastScan" in type(self._ivf or self._index).__name__:
            raise refusals.invalid_release(
                f"{self.name} is a FastScan index, whose codes lie transposed", _REMEDY
            )

    @property
    def kind(self) -> str:
        """What Faiss calls the index."""
        return type(self._index).__name__ if self._ivf is None else type(self._ivf).__name__

    def require_numbered(self) -> None:
        """Raise unless each number from 0 to n-1 has exactly one key."""
        seen = np.zeros(self.count, bool)
        for numbers in self._all_numbers():
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= self.count):
                raise refusals.invalid_release(
                    f"{self.name} has keys of other numbers than 0 to {self.count - 1}", _AGAIN
                )
            seen[numbers] = True
        if not seen.all():
            raise refusals.invalid_release(
                f"{self.name} has two keys of one number, and none of {seen.argmin()}", _AGAIN
            )

    def blocks(self, size: int, start: int = 0) -> Iterator[tuple[Ids, Vectors]]:
        """Give the numbers [n] of keys and the keys as unit vectors [n, d], from the `start`th of the file on."""
        source = self._of_lists(size, start) if self._ivf is not None else self._in_order(size, start)
        for numbers, keys in source:
            lengths = np.linalg.norm(keys, axis=1, keepdims=True)
            if not np.isfinite(lengths).all() or not (lengths > 0).all():
                raise refusals.invalid_release(f"{self.name} has keys without a direction", _AGAIN)
            yield self._outer(numbers), keys / lengths

    def _outer(self, numbers: Ids) -> Ids:
        return numbers if self._numbers is None else self._numbers[numbers]

    def _all_numbers(self) -> Iterator[Ids]:
        if self._ivf is None:
            yield self._outer(np.arange(self.count, dtype=np.int64))
            return
        for number in range(self._ivf.nlist):
            yield self._outer(_ids_of(self._ivf.invlists, number))

    def _in_order(self, size: int, start: int) -> Iterator[tuple[Ids, Vectors]]:
        for first in range(start, self.count, size):
            many = min(size, self.count - first)
            try:
                keys = self._index.reconstruct_n(first, many)
            except RuntimeError as error:
                raise refusals.invalid_release(
                    f"{self.name}, a {self.kind}, does not give its keys back", _REMEDY
                ) from error
            yield np.arange(first, first + many, dtype=np.int64), keys

    def _of_lists(self, size: int, start: int) -> Iterator[tuple[Ids, Vectors]]:
        held: list[tuple[Ids, npt.NDArray[np.uint8]]] = []
        many = 0
        for numbers, codes in self._pieces(size, start):
            held.append((numbers, codes))
            many += len(numbers)
            if many >= size:
                yield self._decoded(held)
                held, many = [], 0
        if held:
            yield self._decoded(held)

    def _pieces(self, size: int, start: int) -> Iterator[tuple[Ids, npt.NDArray[np.uint8]]]:
        """Give the numbers and codes of each list, of at most `size` at once; a code begins with its list's number."""
        lists, width, passed = self._ivf.invlists, self._ivf.code_size, 0
        for number in range(self._ivf.nlist):
            length = lists.list_size(number)
            at, passed = max(0, start - passed), passed + length
            if at >= length:
                continue
            ids = _ids_of(lists, number)
            codes = faiss.rev_swig_ptr(lists.get_codes(number), length * width).reshape(length, width)
            prefix = np.frombuffer(number.to_bytes(8, "little"), np.uint8)[: self._ivf.coarse_code_size()]
            for first in range(at, length, size):
                some = codes[first : first + size]
                yield (
                    ids[first : first + size],
                    np.hstack([np.broadcast_to(prefix, (len(some), len(prefix))), some]),
                )

    def _decoded(self, held: list[tuple[Ids, npt.NDArray[np.uint8]]]) -> tuple[Ids, Vectors]:
        numbers, codes = (np.concatenate(parts) for parts in zip(*held, strict=True))
        try:
            return numbers, self._index.sa_decode(np.ascontiguousarray(codes))
        except (RuntimeError, AssertionError) as error:
            raise refusals.invalid_release(
                f"{self.name}, a {self.kind}, does not give its keys back", _REMEDY
            ) from error


_REMEDY = "Flat, PQ, SQ and RaBitQ codes are read, in inverted lists and behind a rotation or not."


def _ids_of(lists: Any, number: int) -> Ids:
    length = lists.list_size(number)
    ids: Ids = faiss.rev_swig_ptr(lists.get_ids(number), length).copy() if length else np.empty(0, np.int64)
    return ids
