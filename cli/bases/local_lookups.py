"""Lookups, answers, misses and kept questions of this machine's knowledge base, with its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy.typing as npt

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.records import Answer, AnswerMode, AnswerThreshold, Calibrating
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.log.records import OnRecord
from colmlm.kb.lookup.lookups import Lookups
from colmlm.kb.lookup.options import AnswerOptions, FilterOptions, LookupOptions
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.misses.misses import Misses
from colmlm.kb.misses.records import MissDetails, MissPage, MissSearch, Solving
from colmlm.kb.questions.sets import QuestionSets

if TYPE_CHECKING:
    from colmlm.kb.questions.records import AskingSet, QuestionRun


@dataclass(frozen=True, slots=True)
class LocalLookups(Lookups):
    """The verbs of lookups, also by questions, which the settings' checkpoint encodes."""

    runtime: Runtime

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]:
        return self.runtime.lookups.find(queries_BD, checkpoint_id=checkpoint_id, **options)

    def ask(self, question: str, *, as_of: int | None = None, **options: Unpack[LookupOptions]) -> Lookup:
        kb = self.runtime.kb
        kb.keysets.active()  # fails for a base without keys, before a model is loaded for seconds
        asked = self.runtime.lookups if as_of is None else kb.lookups.as_of(as_of)
        encoder = self.runtime.encoder
        options["texts"] = [question]
        (found,) = asked.find(
            encoder.encode_questions([question]),
            checkpoint_id=encoder.checkpoint.checkpoint_id,
            **options,
        )
        return found

    def answer(
        self,
        question: str,
        *,
        mode: AnswerMode = "read",
        as_of: int | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        self.runtime.open()  # fails before a model is loaded for seconds
        if as_of is not None:
            return self.runtime.answers.ask_as_of(question, as_of, mode=mode, **options)
        return StoredAnswers(self.runtime.kb, self.runtime.answers).answer(question, mode, **options)

    def answer_threshold(self) -> AnswerThreshold:
        from colmlm.cli.composition.calibrating import calibrations

        self.runtime.open()
        return calibrations(self.runtime.user, self.runtime.kb).standing()

    def calibrate_answers(
        self, questions: Path | None, how: Calibrating, **who: Unpack[OnRecord]
    ) -> dict[str, Any]:
        from colmlm.cli.composition.calibrating import AnswerCalibrating

        self.runtime.open()
        return AnswerCalibrating(self.runtime, self.runtime.kb, self.runtime.telling).run(
            questions, how, **who
        )

    def use_shipped_threshold(self, **who: Unpack[OnRecord]) -> AnswerThreshold:
        from colmlm.cli.composition.calibrating import calibrations

        self.runtime.open()
        return calibrations(self.runtime.user, self.runtime.kb).drop(**who)


@dataclass(frozen=True, slots=True)
class LocalMisses:
    """The verbs of misses. A list groups what is new first, and a solution asks questions again."""

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
        return Misses(self.runtime.kb, self._answering_fact_ids)

    def _answering_fact_ids(self, question: str, **only: Unpack[FilterOptions]) -> list[int]:
        return self.runtime.answers.ids_of_answer(question, **only)


@dataclass(frozen=True, slots=True)
class LocalQuestions(QuestionSets):
    """The verbs of kept questions, which are asked with the settings' checkpoint and reader."""

    runtime: Runtime

    def ask(self, name: str, how: AskingSet, *, actor: str) -> QuestionRun:
        from colmlm.cli.composition.asking_sets import SetAsking

        return SetAsking(self.runtime, self.runtime.kb, self.runtime.telling).run(name, how, actor=actor)
