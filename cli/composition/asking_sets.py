"""Asks sets of kept questions with the models of a runtime, for commands and jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.lookup.options import filter_of
from colmlm.kb.progress import Telling
from colmlm.kb.questions.records import AskingSet

if TYPE_CHECKING:
    from colmlm.kb.questions.asking import Asker
    from colmlm.kb.questions.records import QuestionRun
    from colmlm.kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class SetAsking:
    """Asks sets of a runtime's base. A job gives its own `kb`."""

    runtime: Runtime
    kb: KnowledgeBase
    telling: Telling

    def run(self, name: str, how: AskingSet, *, actor: str) -> QuestionRun:
        """Ask every question of a set, and store the run."""
        self.kb.questions.show(name)  # fails before a model is loaded for seconds
        asker = self._asker(how)
        with self.telling.progress("Asking") as advance:
            return self.kb.questions.run(name, asker, advance, actor=actor)

    def _asker(self, how: AskingSet) -> Asker:
        from colmlm.kb.questions.asking import ByAnswers, ByRanking

        way, answers = how.way, self.runtime.answers
        if way in ("read", "paper"):
            return ByAnswers(answers, way, how.threshold, filter_of(how))
        encoder = self.runtime.encoder
        return ByRanking(answers, self.runtime.lookups, encoder, way, how.threshold, filter_of(how))
