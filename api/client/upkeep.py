"""Figures of a remote knowledge base."""

from __future__ import annotations

from dataclasses import dataclass

from colmlm.api.client.api import Api
from colmlm.kb.upkeep.upkeep import Statistics


@dataclass(frozen=True, slots=True)
class RemoteUpkeep:
    """The verbs of `api.nouns.upkeep.UpkeepVerbs` over the API."""

    api: Api

    def statistics(self) -> Statistics:
        return self.api.get("/stats", Statistics)
