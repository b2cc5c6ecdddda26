"""Lookups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy.typing as npt

    from colmlm.kb.lookup.records import Lookup
    from colmlm.kb.lookup.space import LookupSpace


class Finding(Protocol):
    """Finds the nearest live facts, now or as of a change."""

    def find(
        self,
        queries_BD: npt.NDArray[Any],
        *,
        checkpoint_id: str,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
    ) -> Sequence[Lookup]:
        """Finds the k best live facts of each query [B, d], at or above the threshold (None: the keyset's own)."""
        ...


class LookupVerbs(Finding, Protocol):
    """Of `kb.lookup.searchable.Lookups`, and with an encoder."""

    def ask(
        self,
        question: str,
        *,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
        as_of: int | None = None,
    ) -> Lookup:
        """Finds the k facts nearest to a question, `as_of` a change where that is named."""
        ...

    def as_of(self, seq: int) -> Finding:
        """Gives lookups as the base stood at change `seq`."""
        ...

    def space(self) -> LookupSpace:
        """Tells what lookups are answered from now: whose queries, how wide, at which threshold, as of which change."""
        ...
