"""The verbs of lookups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy.typing as npt

    from colmlm.kb.lookup.records import Lookup, LookupSpace


class FactFinder(Protocol):
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


class LookupVerbs(FactFinder, Protocol):
    """What lookups can be asked for: the verbs of `kb.lookup.searchable.Lookups`, and questions as text."""

    def ask(
        self,
        question: str,
        *,
        k: int = 1,
        threshold: float | None = None,
        min_seq: int | None = None,
        as_of: int | None = None,
    ) -> Lookup:
        """Finds the k facts nearest to a question; with `as_of`, as the base was after that change."""
        ...

    def as_of(self, seq: int) -> FactFinder:
        """Gives lookups in the state after change `seq`."""
        ...

    def space(self) -> LookupSpace:
        """Describes the active keyset: its checkpoint, dimension and threshold, and the head of the log."""
        ...
