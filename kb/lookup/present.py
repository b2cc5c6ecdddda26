"""The ids that an index holds, as bits in pages: what an id costs does not depend on how many there are.

Ids come from one sequence, so those of a keyset lie close together: eight million take eight megabytes. An array that
is kept in order costs a copy of all of it for each key.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_PAGE_BITS = 12
_PAGE = 1 << _PAGE_BITS  # ids in a page, a byte each


def distinct(ids: Ids) -> Ids:
    """Gives ids ascending and each once, by sorting them.

    `np.unique` puts integers into a hash table first, which takes eight seconds for ten million of them; this takes a
    tenth of one.
    """
    ordered = np.sort(ids)
    return ordered[np.diff(ordered, prepend=-1) != 0] if len(ordered) else ordered


class PresentIds:
    """A set of ids from 0 up. What it is asked about, and told, comes ascending and each once."""

    def __init__(self, ids: Ids) -> None:
        self._pages: dict[int, Flags] = {}
        self._number = 0
        self.add(distinct(ids))

    def __len__(self) -> int:
        return self._number

    def has(self, ids: Ids) -> Flags:
        """Says of each of these ids whether it is present."""
        found = np.zeros(len(ids), dtype=np.bool_)
        for number, part, places in _by_page(ids):
            if (page := self._pages.get(number)) is not None:
                found[part] = page[places]
        return found

    def add(self, ids: Ids) -> None:
        """Adds ids of which none is present."""
        for number, _, places in _by_page(ids):
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = np.zeros(_PAGE, dtype=np.bool_)
            page[places] = True
        self._number += len(ids)

    def discard(self, ids: Ids) -> None:
        """Takes out ids that are all present. A page that gets empty is dropped, since ids do not come back."""
        for number, _, places in _by_page(ids):
            page = self._pages[number]
            page[places] = False
            if not page.any():
                del self._pages[number]
        self._number -= len(ids)

    def ascending(self) -> Ids:
        """Gives all ids in order; no other thread may change them meanwhile."""
        pages = [np.flatnonzero(self._pages[number]) + number * _PAGE for number in sorted(self._pages)]
        return np.concatenate([np.empty(0, dtype=np.int64), *pages])


def _by_page(ids: Ids) -> Iterator[tuple[int, slice, Ids]]:
    """Cuts ascending ids by page: the number of each page, which of the ids are in it, and their places there."""
    pages = ids >> _PAGE_BITS
    starts = np.flatnonzero(np.diff(pages, prepend=-1)).tolist()
    for start, end in pairwise([*starts, len(ids)]):
        yield int(pages[start]), slice(start, end), ids[start:end] & (_PAGE - 1)
