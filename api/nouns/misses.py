"""The verbs of misses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.misses.records import MissDetails, MissPage, MissSearch, Solving


class MissVerbs(Protocol):
    """What the work list of misses can be asked for, as `kb.misses.misses.Misses` describes it."""

    def find(self, **sought: Unpack[MissSearch]) -> MissPage: ...

    def read(self, group_id: int) -> MissDetails: ...

    def dismiss(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int: ...

    def reopen(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int: ...

    def solve(
        self, group_id: int, fact_id: int, *, anyway: bool = False, **who: Unpack[OnRecord]
    ) -> Solving: ...
