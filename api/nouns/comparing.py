"""The verbs of comparisons: what contradicts, says the same, or is stale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    from colmlm.kb.facts.compared import (
        AlsoSaid,
        ComparedCounts,
        ComparedPart,
        Kind,
        PairPage,
        PairsSought,
        StalePage,
    )
    from colmlm.kb.facts.records import Edit
    from colmlm.kb.log.records import OnRecord


class ComparisonVerbs(Protocol):
    """What comparisons of facts can be asked for, as `kb.facts.comparisons.Comparisons` describes it."""

    def pairs(self, kind: Kind, **sought: Unpack[PairsSought]) -> PairPage: ...

    def stale(self, **part: Unpack[ComparedPart]) -> StalePage: ...

    def counts(self) -> ComparedCounts: ...

    def also_said(self, fact_ids: Sequence[int]) -> list[AlsoSaid]: ...

    def hold(self, fact_id: int, other_id: int, *, holds: bool = True, **who: Unpack[OnRecord]) -> Edit: ...
