"""Nearness of misses: each is compared with the leaders of the groups, and joins the nearest or leads a new one.

The same words are near. Beside that, queries of one checkpoint are near by their cosine, and where a miss has no query,
or no leader has one of its space, its words decide.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

COSINE = 0.85  # of two queries from which on they ask the same
OVERLAP = 0.6  # of the words of two questions, as the share of all words that both have

Vectors = npt.NDArray[np.float32]
_Near = tuple[int, float]  # a slot, and the cosine of its leader


@dataclass(frozen=True, slots=True)
class ComparedMiss:
    """What a miss is compared by: its words, and if it has one its query, a unit vector in a checkpoint's space."""

    words: frozenset[str]
    space: str = ""
    query_D: Vectors | None = None


@dataclass(slots=True)
class _Space:
    """The queries of leaders in one space, in a matrix that grows by doubling."""

    rows_ND: Vectors
    slots: list[int] = field(default_factory=list)

    def add(self, slot: int, query_D: Vectors) -> None:
        if len(self.slots) == len(self.rows_ND):
            self.rows_ND = np.concatenate([self.rows_ND, np.empty_like(self.rows_ND)])
        self.rows_ND[len(self.slots)] = query_D
        self.slots.append(slot)

    def nearest(self, queries_BD: Vectors, first: int = 0) -> list[_Near]:
        """Gives the nearest of the leaders from the place `first` on to each query; there must be one."""
        cosines_BN = queries_BD @ self.rows_ND[first : len(self.slots)].T
        best_B = cosines_BN.argmax(axis=1)
        return [
            (self.slots[first + n], float(row_N[n]))
            for row_N, n in zip(cosines_BN, best_B.tolist(), strict=True)
        ]


@dataclass(slots=True)
class Leaders:
    """The leaders of groups. Each has a slot: the first 0, the next 1, and so on."""

    _words: list[frozenset[str]] = field(default_factory=list)
    _spaces: dict[tuple[str, int], _Space] = field(default_factory=dict)
    _saying: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _same: dict[frozenset[str], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._words)

    def add(self, miss: ComparedMiss) -> int:
        slot = len(self._words)
        self._words.append(miss.words)
        self._same.setdefault(miss.words, slot)
        for word in miss.words:
            self._saying[word].append(slot)
        if miss.query_D is not None:
            space = self._spaces.setdefault(
                (miss.space, len(miss.query_D)), _Space(np.empty((16, len(miss.query_D)), dtype=np.float32))
            )
            space.add(slot, miss.query_D)
        return slot

    def join(self, misses: Sequence[ComparedMiss]) -> list[int]:
        """Gives the slot that each miss joins; where no leader is near it becomes one itself."""
        known = {key: len(space.slots) for key, space in self._spaces.items()}
        near = self._near(misses)
        slots = []
        for n, miss in enumerate(misses):
            slot = self._nearest(miss, near.get(n), known)
            slots.append(self.add(miss) if slot is None else slot)
        return slots

    def _near(self, misses: Sequence[ComparedMiss]) -> dict[int, _Near]:
        """Compares all queries of a space at once, which takes a tenth of the time, with the leaders that are there."""
        found: dict[int, _Near] = {}
        for (name, dim), space in self._spaces.items():
            queries = {
                n: one.query_D
                for n, one in enumerate(misses)
                if one.query_D is not None and (one.space, len(one.query_D)) == (name, dim)
            }
            if queries:
                found |= zip(queries, space.nearest(np.stack(list(queries.values()))), strict=True)
        return found

    def _nearest(
        self, miss: ComparedMiss, near: _Near | None, known: dict[tuple[str, int], int]
    ) -> int | None:
        if (same := self._same.get(miss.words)) is not None:
            return same
        if miss.query_D is None:
            return self._by_words(miss.words)
        key = (miss.space, len(miss.query_D))
        space, first = self._spaces.get(key), known.get(key, 0)
        if space is None:
            return self._by_words(miss.words)
        if len(space.slots) > first:
            (newer,) = space.nearest(miss.query_D[np.newaxis], first)
            near = newer if near is None else max(near, newer, key=lambda one: one[1])
        assert near is not None, "a space has a leader"
        return near[0] if near[1] >= COSINE else None

    def _by_words(self, words: frozenset[str]) -> int | None:
        best, most = None, OVERLAP
        for slot in dict.fromkeys(self._candidates(words)):
            theirs = self._words[slot]
            share = len(words & theirs) / len(words | theirs)
            if share > most or (best is None and share == most):
                best, most = slot, share
        return best

    def _candidates(self, words: frozenset[str]) -> Iterator[int]:
        """Gives the leaders that say one of the rarest words: who shares enough of all has one of so many."""
        rarest = sorted(words, key=lambda word: (len(self._saying.get(word, ())), word))
        for word in rarest[: len(words) - math.ceil(OVERLAP * len(words)) + 1]:
            yield from self._saying.get(word, ())
