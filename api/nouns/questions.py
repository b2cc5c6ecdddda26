"""The verbs of kept questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Unpack

from colmlm.api.nouns.lookups import AnswerMode

if TYPE_CHECKING:
    from colmlm.kb.questions.records import (
        AskedItem,
        DraftQuestion,
        KeptQuestion,
        KeptSet,
        QuestionRun,
        RunComparison,
        TakenQuestion,
        Way,
    )


@dataclass(frozen=True, slots=True)
class AskingSet:
    """How a set is asked: in a `mode` of answers, or with a `ranking` of lookups; and with which `threshold` (None: the
    base's own). By the ranking "key" facts are found as in the mode "paper". With `accepted_only` no proposed fact
    answers.
    """

    mode: AnswerMode = "read"
    ranking: Literal["key", "words", "reader"] | None = None
    threshold: float | None = None
    accepted_only: bool = False

    @property
    def way(self) -> Way:
        return self.mode if self.ranking is None else "paper" if self.ranking == "key" else self.ranking


class QuestionVerbs(Protocol):
    """What kept questions can be asked for, as `kb.questions.sets.QuestionSets` describes it."""

    def all(self) -> list[KeptSet]: ...

    def show(self, name: str) -> KeptSet: ...

    def questions(self, name: str, after: int = 0, limit: int = 100) -> list[KeptQuestion]: ...

    def add(
        self, name: str, questions: Sequence[DraftQuestion], *, corpus: str | None = None, actor: str
    ) -> KeptSet: ...

    def take(
        self, name: str, generation_id: int, *, actor: str, **said: Unpack[TakenQuestion]
    ) -> KeptSet: ...

    def edit(self, name: str, question_id: int, question: str, expected: Sequence[str]) -> KeptSet: ...

    def remove(self, name: str, question_ids: Sequence[int] | None = None) -> KeptSet: ...

    def ask(self, name: str, how: AskingSet, *, actor: str) -> QuestionRun:
        """Asks every question of a set, and stores what came of it as a run; a server does it as a job."""
        ...

    def runs(self, name: str, before: int | None = None, limit: int = 100) -> list[QuestionRun]: ...

    def show_run(self, name: str, run_id: int) -> QuestionRun: ...

    def items(self, name: str, run_id: int, after: int = 0, limit: int | None = None) -> list[AskedItem]: ...

    def compare(self, name: str, before: int | None = None, after: int | None = None) -> RunComparison: ...
