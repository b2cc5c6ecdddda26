"""The records that lookups return, and the protocol of observers of lookups.

The default observer does nothing, so this package needs no library for metrics or spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from colmlm.kb.facts.records import Review


@dataclass(frozen=True, slots=True)
class Hit:
    """A live fact that a lookup found, with its exact inner product with the query.

    Found by more than its key, its `score` is as `kb.answers.ranked` says, and `key_id` None where the reader found it.
    A `review` of "proposed" says that nobody has accepted the fact yet. Where it is `approximate`, its key was adopted
    from a release's codes, and the score is exact for that key alone.
    """

    fact_id: int
    version: int
    value: str
    score: float
    key_id: int | None
    review: Review = "accepted"
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class AskedQuery:
    """The query vector of a question, as fp16 bytes, and the checkpoint that made it."""

    checkpoint_id: str
    query: bytes


@dataclass(frozen=True, slots=True)
class Ranking:
    """The nearest facts of one query: live ones, best first, and the nearest tombstone with its score."""

    hits: tuple[Hit, ...] = ()
    tombstone: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer to one query: `hits` best first, all at or above `threshold`; where there are none it is *no match*.

    `runner_up` is the best score of any live fact, also below the threshold (None in an empty base); `seq` is the last
    change that the index had applied. `abstained` is the forgotten fact that was nearest to the query, where it was
    forgotten with the policy "abstain": then there are no hits.
    """

    hits: tuple[Hit, ...]
    runner_up: float | None
    threshold: float
    seq: int
    abstained: int | None = None


@dataclass(frozen=True, slots=True)
class AsOfLookup(Lookup):
    """The answer that a query would have had as of change `seq`.

    `redacted` counts facts that were live then and are erased now. `unkeyed` counts facts that were live then and have
    no key of that time: they were not keyed yet, or a later ingest changed the text before them and dropped it. Any of
    these may be missing from the hits; the rest of the answer is as it was.
    """

    redacted: int = 0
    unkeyed: int = 0


@dataclass(frozen=True, slots=True)
class LookupSpace:
    """The active keyset's space: queries must be of `checkpoint_id` and have `dim` numbers.

    `head_seq` is the last change.
    """

    keyset_id: int
    checkpoint_id: str
    checkpoint_name: str
    dim: int
    threshold: float
    calibrated: bool
    head_seq: int


@dataclass(frozen=True, slots=True)
class IndexMemory:
    """The memory of an index that torch searches, on a `device`: it has room for `capacity` keys, and holds `num_keys`.

    It takes `device_bytes` on the device and `main_bytes` in main memory.
    """

    device: str
    num_keys: int
    capacity: int
    device_bytes: int
    main_bytes: int


class Observer(Protocol):
    """Observes lookups. Every thread that looks something up calls it; an error that it raises fails the lookup."""

    def timed(self, part: str) -> AbstractContextManager[object]:
        """Give a context that times a `part`: the whole "lookup", a "search" of the index, or a "select"."""
        ...

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        """Receive the answers to the queries of one lookup."""
        ...


class SilentObserver:
    """The observer that does nothing."""

    _nothing = nullcontext()  # it has no state, so threads may enter it at the same time

    def timed(self, part: str) -> AbstractContextManager[object]:
        return self._nothing

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        pass


NOBODY = SilentObserver()
