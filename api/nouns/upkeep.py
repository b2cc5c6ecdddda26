"""The verbs of upkeep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from colmlm.kb.upkeep.upkeep import Statistics


class UpkeepVerbs(Protocol):
    """What upkeep can be asked for, as `kb.upkeep.upkeep.Upkeep` describes it."""

    def statistics(self) -> Statistics:
        """Counts what is in the base."""
        ...
