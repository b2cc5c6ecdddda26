"""The lookups that a decoder needs from a knowledge base, as protocols: the query and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray


class FoundFact(Protocol):
    @property
    def fact_id(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def value(self) -> str: ...
    @property
    def score(self) -> float: ...


class LookupResult(Protocol):
    @property
    def hits(self) -> Sequence[FoundFact]: ...
    @property
    def runner_up(self) -> float | None: ...
    @property
    def seq(self) -> int: ...
    @property
    def abstained(self) -> int | None: ...


class LookupAsked(TypedDict, total=False):
    """What a decoder may ask of a lookup: the `k` best facts (1) from a `threshold` on (None: the base's own).

    `min_seq` is a change that the answer must include. With a `ranking` by more than the key there are `texts`, one for
    each query. With `accepted_only` no fact is found that nobody has accepted.
    """

    k: int
    threshold: float | None
    min_seq: int | None
    ranking: str
    texts: Sequence[str]
    accepted_only: bool


class LookupPort(Protocol):
    """A knowledge base that finds the best facts for unit-norm queries."""

    def find(
        self, queries_BD: NDArray[np.float32], *, checkpoint_id: str, **asked: Unpack[LookupAsked]
    ) -> Sequence[LookupResult]:
        """Gives one result per query; a result without hits at or above the threshold is *no match*."""
        ...
