"""What a knowledge base tells whoever watches it: how long the parts of a lookup take, and how lookups end.

Nobody watches by default. Then it costs the call of a method that does nothing, and this package stays free of the
libraries that count and trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from colmlm.kb.lookup.records import Lookup


class Observer(Protocol):
    """Who watches. Called from every thread that looks something up; what it raises fails the lookup."""

    def timed(self, part: str) -> AbstractContextManager[object]:
        """Around a part of the work: "lookup", and within it each "search" of the index and "select" that decides."""
        ...

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        """The answers to the queries of one lookup."""
        ...


class Nobody:
    """The observer where there is none."""

    _nothing = nullcontext()  # has no state, so every thread may enter it at once

    def timed(self, part: str) -> AbstractContextManager[object]:
        return self._nothing

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        pass


NOBODY = Nobody()
