"""Misses of this machine's knowledge base; a list groups what is new first, and a solution asks questions again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.log.records import OnRecord
from colmlm.kb.misses.misses import Misses
from colmlm.kb.misses.records import MissDetails, MissPage, MissSearch, Solving


@dataclass(frozen=True, slots=True)
class LocalMisses:
    """Implements `api.nouns.misses.MissVerbs` on this machine's knowledge base."""

    runtime: Runtime

    def find(self, **sought: Unpack[MissSearch]) -> MissPage:
        with self.runtime.telling.progress("Grouping misses") as advance:
            self._misses.group(advance)
        return self._misses.find(**sought)

    def read(self, group_id: int) -> MissDetails:
        return self._misses.read(group_id)

    def dismiss(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        return self._misses.dismiss(group_ids, actor=actor, reason=reason)

    def reopen(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        return self._misses.reopen(group_ids, actor=actor, reason=reason)

    def solve(self, group_id: int, fact_id: int, *, anyway: bool = False, **who: Unpack[OnRecord]) -> Solving:
        return self._misses.solve(group_id, fact_id, anyway=anyway, **who)

    @property
    def _misses(self) -> Misses:
        return Misses(self.runtime.kb, self._asked)

    def _asked(self, question: str, *, accepted_only: bool) -> list[int]:
        said = self.runtime.answers.ask(question, accepted_only=accepted_only)
        return [fact.fact_id for fact in said.facts]
