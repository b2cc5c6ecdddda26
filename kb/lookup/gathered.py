"""Lookups of several callers by key, found together: one search and one SELECT for all that want the same of it.

Each gets what it would get alone. The SELECT begins after all of them asked, so a delete that was committed before any
of them asked holds for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Unpack

import numpy as np

from colmlm.kb.errors import KBError
from colmlm.kb.keys.keysets import Vectors
from colmlm.kb.lookup.options import LookupOptions
from colmlm.kb.lookup.records import Lookup

Found = list[Lookup] | KBError


@dataclass(frozen=True, slots=True, eq=False)
class KeyLookup:
    """One caller's queries [B, d] by key, among the facts of now."""

    queries_BD: Vectors
    checkpoint_id: str
    k: int = 1
    threshold: float | None = None
    accepted_only: bool = False

    @property
    def kind(self) -> tuple[str, int, int, float | None, bool]:
        """What lookups share that are found by one search."""
        return self.checkpoint_id, self.queries_BD.shape[1], self.k, self.threshold, self.accepted_only


class FindsByKey(Protocol):
    """The part of `Lookups` that finds by key."""

    def find(
        self, queries_BD: Vectors, *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]: ...


def find_together(lookups: FindsByKey, asked: Sequence[KeyLookup]) -> list[Found]:
    """Gives the result of each, or the error that refuses it."""
    kinds: dict[object, list[int]] = {}
    for i, one in enumerate(asked):
        kinds.setdefault(one.kind, []).append(i)
    found: dict[int, Found] = {}
    for alike in kinds.values():
        found.update(zip(alike, _of_kind(lookups, [asked[i] for i in alike]), strict=True))
    return [found[i] for i in range(len(asked))]


def _of_kind(lookups: FindsByKey, alike: list[KeyLookup]) -> list[Found]:
    sizes = [len(one.queries_BD) for one in alike]
    first, queries_BD = alike[0], np.concatenate([one.queries_BD for one in alike])
    try:
        found = lookups.find(
            queries_BD,
            checkpoint_id=first.checkpoint_id,
            k=first.k,
            threshold=first.threshold,
            accepted_only=first.accepted_only,
        )
    except KBError as error:
        if len(alike) == 1:
            return [error]
        return [result for one in alike for result in _of_kind(lookups, [one])]  # one of them spoils no other
    ends = np.cumsum(sizes).tolist()
    return [found[end - size : end] for size, end in zip(sizes, ends, strict=True)]
