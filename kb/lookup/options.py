"""The options of a lookup: as its verbs take them, and as they are carried out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from colmlm.kb.errors import InvalidQuery

MAX_K = 1000
KEY, WORDS, READER = "key", "words", "reader"
RANKINGS = (KEY, WORDS, READER)
NEAREST = 200  # facts that a search by meaning gives


class LookupOptions(TypedDict, total=False):
    """What a lookup is asked for: the `k` best facts (1), at or above the `threshold` (None: the keyset's own).

    `min_seq` is the seq of an edit that the answer must include. `ranking` is what facts are found by: "key" (the
    default), or as `kb.answers.ranked` says "words" or "reader", with one of the `texts` for each query. With
    `accepted_only` no proposed fact is found, as where the active keyset or the fact's corpus says so.
    """

    k: int
    threshold: float | None
    min_seq: int | None
    ranking: str
    texts: Sequence[str]
    accepted_only: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of one lookup by keys, with what was left out. Raises `InvalidQuery` where they cannot be meant.

    The facts `without` are passed over, as if they had no keys.
    """

    k: int = 1
    threshold: float | None = None
    min_seq: int | None = None
    ranking: str = KEY
    texts: Sequence[str] = ()
    accepted_only: bool | None = False
    without: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.ranking != KEY:
            raise InvalidQuery(
                f"facts are found by key alone here, as they are in the past, and not by {self.ranking!r}; "
                "leave the ranking out"
            )
        if not 1 <= self.k <= MAX_K:
            raise InvalidQuery(f"k is {self.k}, not between 1 and {MAX_K}")
        if self.threshold is not None and not -1 <= self.threshold <= 1:
            raise InvalidQuery(f"the threshold {self.threshold} is not a cosine, from -1 to 1")
