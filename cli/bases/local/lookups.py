"""Lookups in this machine's knowledge base, also by questions, which the settings' checkpoint encodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy.typing as npt

from colmlm.api.nouns.lookups import AnswerMode, Calibrating
from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.records import Answer, AnswerOptions, AnswerThreshold
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.log.records import OnRecord
from colmlm.kb.lookup.lookups import Lookups
from colmlm.kb.lookup.options import LookupOptions
from colmlm.kb.lookup.records import Lookup


@dataclass(frozen=True, slots=True)
class LocalLookups(Lookups):
    """Implements `api.nouns.lookups.LookupVerbs` on this machine's knowledge base."""

    runtime: Runtime

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]:
        return self.runtime.lookups.find(queries_BD, checkpoint_id=checkpoint_id, **options)

    def ask(
        self,
        question: str,
        *,
        as_of: int | None = None,
        **options: Unpack[LookupOptions],
    ) -> Lookup:
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
