"""Kept questions of this machine's knowledge base, asked with the settings' checkpoint and reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.questions.sets import QuestionSets

if TYPE_CHECKING:
    from colmlm.api.nouns.questions import AskingSet
    from colmlm.kb.questions.records import QuestionRun


@dataclass(frozen=True, slots=True)
class LocalQuestions(QuestionSets):
    """Implements `api.nouns.questions.QuestionVerbs` on this machine's knowledge base."""

    runtime: Runtime

    def ask(self, name: str, how: AskingSet, *, actor: str) -> QuestionRun:
        from colmlm.cli.composition.asking_sets import SetAsking

        return SetAsking(self.runtime, self.runtime.kb, self.runtime.telling).run(name, how, actor=actor)
