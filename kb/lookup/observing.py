"""The protocol of an observer: it is told how long the parts of a lookup take, and how lookups end.

By default nothing observes; that costs the call of a method that does nothing, and this package needs no library for
metrics or spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from colmlm.kb.lookup.records import Lookup


class Observer(Protocol):
    """Observes lookups. Every thread that looks something up calls it; an error that it raises fails the lookup."""

    def timed(self, part: str) -> AbstractContextManager[object]:
        """Give a context for a part of the work: "lookup", and within it each "search" of the index and "select"."""
        ...

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        """Receive the answers to the queries of one lookup."""
        ...


class Nobody:
    """The observer that does nothing."""

    _nothing = nullcontext()  # it has no state, so threads may enter it at the same time

    def timed(self, part: str) -> AbstractContextManager[object]:
        return self._nothing

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        pass


NOBODY = Nobody()
