"""The options of a lookup: as its verbs take them, and as they are carried out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from colmlm.kb.errors import InvalidQuery

MAX_K = 1000


class LookupOptions(TypedDict, total=False):
    """What a lookup is asked for: the `k` best facts (1), at or above the `threshold` (None: the keyset's own).

    `min_seq` is the seq of an edit that the answer must include.
    """

    k: int
    threshold: float | None
    min_seq: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of one lookup, with what was left out. Raises `InvalidQuery` where they cannot be meant."""

    k: int = 1
    threshold: float | None = None
    min_seq: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_K:
            raise InvalidQuery(f"k is {self.k}, not between 1 and {MAX_K}")
        if self.threshold is not None and not -1 <= self.threshold <= 1:
            raise InvalidQuery(f"the threshold {self.threshold} is not a cosine, from -1 to 1")
