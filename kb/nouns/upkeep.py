"""How a knowledge base is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from colmlm.kb.upkeep.statistics import Statistics


class UpkeepVerbs(Protocol):
    """Of `kb.upkeep.upkeep.Upkeep`."""

    def statistics(self) -> Statistics:
        """Counts what is in the base."""
        ...
