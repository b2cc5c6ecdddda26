"""Lookups, answers, misses, kept questions and keysets of this machine's base, with the models that they ask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.records import Answer, AnswerMode, AnswerThreshold, Calibrating
from colmlm.kb.errors import refusals
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.log.records import OnRecord
from colmlm.kb.lookup.lookups import Lookups
from colmlm.kb.lookup.options import KEY, AnswerOptions, FilterOptions, LookupOptions
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.misses.misses import Misses
from colmlm.kb.misses.records import MissPage, MissSearch
from colmlm.kb.questions.sets import QuestionSets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from colmlm.kb.keys.records import Activating, Adapting, GateLimits, GateStanding, KeysetRecord
    from colmlm.kb.keys.rekey import Encoder
    from colmlm.kb.questions.records import AskingSet, QuestionRun
    from colmlm.kb.switching.gate import ScoreDrift
    from colmlm.kb.switching.keysets import Keysets
    from colmlm.kb.switching.measures import Scores


@dataclass(frozen=True, slots=True)
class LocalKeysets:
    """The verbs of keysets, with the models that make and measure their keys."""

    runtime: Runtime

    @property
    def _keysets(self) -> Keysets:
        return self.runtime.kb.keysets

    def listed(self) -> list[tuple[KeysetRecord, GateStanding]]:
        return [
            (keyset, self._keysets.standing(keyset.keyset_id)) for keyset in self.runtime.kb.keysets.all()
        ]

    def show(self, keyset_id: int) -> KeysetRecord:
        return self._keysets.show(keyset_id)

    def check(
        self,
        keyset_id: int,
        limits: GateLimits,
        *,
        plot: Path | None = None,
        checkpoint: Path | None = None,
        active_checkpoint: Path | None = None,
    ) -> dict[str, Any]:
        from colmlm.cli.composition.keying import active_encoder_of, encoder_of

        encoder = encoder_of(self.runtime, keyset_id, checkpoint)
        active_encoder = active_encoder_of(self.runtime, keyset_id, active_checkpoint)
        with self.runtime.telling.progress("Asking") as advance:
            report = self.runtime.kb.keysets.check(
                keyset_id,
                encoder,
                limits,
                active_encoder=active_encoder,
                on_texts=advance,
                reader=lambda: self.runtime.reader,
            )
        if plot is not None:
            score_histograms(report.drift, plot)
        return report.to_json()

    def activate(self, keyset_id: int, **how: Unpack[Activating]) -> KeysetRecord:
        return self._keysets.activate(keyset_id, **how)

    def rollback(self, *, actor: str, reason: str) -> KeysetRecord:
        return self._keysets.rollback(actor=actor, reason=reason)

    def retirable(self, keyset_id: int) -> KeysetRecord:
        return self._keysets.retirable(keyset_id)

    def retire(self, keyset_id: int, *, actor: str, reason: str) -> KeysetRecord:
        return self._keysets.retire(keyset_id, actor=actor, reason=reason)

    def set_threshold(self, keyset_id: int, threshold: float) -> KeysetRecord:
        return self._keysets.set_threshold(keyset_id, threshold)

    def rekey(
        self, keyset_id: int | None, *, corpus: str | None, kinds: str, checkpoint: Path | None
    ) -> KeysetRecord:
        """Make the keys that a keyset lacks; without an id that of the `checkpoint`, or else of the settings' one."""
        from colmlm.cli.composition.keying import key_everything

        encoder = self._encoder_of(keyset_id, checkpoint)
        return key_everything(
            self.runtime, corpus=corpus, encoder=encoder, kinds=kinds, replace=True, named=checkpoint
        )

    def adapt(
        self, keyset_id: int | None, *, corpus: str | None, checkpoint: Path | None, **how: Unpack[Adapting]
    ) -> dict[str, Any]:
        """Predict the keys that a keyset lacks, which is chosen as by `rekey`."""
        from colmlm.cli.composition.keying import adapt

        encoder = self._encoder_of(keyset_id, checkpoint)
        return adapt(self.runtime.kb, encoder, self.runtime.telling, corpus, how)

    def _encoder_of(self, keyset_id: int | None, checkpoint: Path | None) -> Encoder:
        from colmlm.cli.composition.keying import encoder_of

        if keyset_id is None:
            self.runtime.open()
            user = self.runtime.user
            self.runtime.user = replace(user, checkpoint=checkpoint or user.checkpoint)
            return self.runtime.encoder
        if (found := self.show(keyset_id)).state == "retired":  # its checkpoint would get a new keyset
            raise refusals.keyset_not_ready(keyset_id, found.state)
        return encoder_of(self.runtime, keyset_id, checkpoint)


@dataclass(frozen=True, slots=True)
class LocalLookups(Lookups):
    """The verbs of lookups, also by questions, which the settings' checkpoint encodes."""

    runtime: Runtime

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]:
        is_by_key = options.get("ranking", KEY) == KEY
        asked = self.runtime.kb.lookups if is_by_key else self.runtime.lookups
        return asked.find(queries_BD, checkpoint_id=checkpoint_id, **options)

    def ask(self, question: str, *, as_of: int | None = None, **options: Unpack[LookupOptions]) -> Lookup:
        kb = self.runtime.kb
        kb.keysets.active()  # fails for a base without keys, before a model is loaded for seconds
        asked = self if as_of is None else kb.lookups.as_of(as_of)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMisses(Misses):
    """The verbs of misses. `find` first groups the new misses, and `solve` asks the questions of a group again."""

    runtime: Runtime

    @classmethod
    def of(cls, runtime: Runtime) -> LocalMisses:
        def answering(question: str, **only: Unpack[FilterOptions]) -> list[int]:
            return runtime.answers.ids_of_answer(question, **only)

        return cls(runtime.kb, answering, runtime=runtime)

    def find(self, **sought: Unpack[MissSearch]) -> MissPage:
        with self.runtime.telling.progress("Grouping misses") as advance:
            self.group(advance)
        return Misses.find(self, **sought)


@dataclass(frozen=True, slots=True)
class LocalQuestions(QuestionSets):
    """The verbs of kept questions, which are asked with the settings' checkpoint and reader."""

    runtime: Runtime

    def ask(self, name: str, how: AskingSet, *, actor: str) -> QuestionRun:
        from colmlm.cli.composition.calibrating import SetAsking

        return SetAsking(self.runtime, self.runtime.kb, self.runtime.telling).run(name, how, actor=actor)


BINS = 40


def score_histograms(drift: ScoreDrift, file: Path) -> None:
    """Draw the threshold and histograms of the scores of right and wrong facts, for both keysets of a gate, as PNG."""
    from matplotlib.figure import Figure  # takes half a second, and no other command needs it

    figure = Figure(figsize=(8, 6), layout="constrained")
    new, active = figure.subplots(2, 1, sharex=True)
    _histogram(new, "checked keyset", drift.genuine, drift.impostor, drift.threshold)
    if drift.active_genuine is not None and drift.active_impostor is not None:
        _histogram(
            active, "active keyset", drift.active_genuine, drift.active_impostor, drift.active_threshold
        )
    else:
        active.set_axis_off()
    (active if drift.active_genuine is not None else new).set_xlabel(
        "exact inner product of question and key"
    )
    figure.savefig(file, format="png", dpi=120)


def _histogram(axes: Axes, title: str, genuine: Scores, impostor: Scores, threshold: float | None) -> None:
    found = [scores[np.isfinite(scores)] for scores in (genuine, impostor)]
    both = np.concatenate(found)
    low, high = (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)
    edges = np.linspace(low, max(high, low + 0.01), BINS + 1).tolist()
    for scores, label in zip(found, ("a fact of the right value", "the best other fact"), strict=True):
        axes.hist(scores, bins=edges, alpha=0.6, label=label)
    if threshold is not None:
        axes.axvline(threshold, color="black", linestyle="--", label=f"threshold {threshold:.3f}")
    axes.set_title(title)
    axes.set_ylabel("questions")
    axes.legend()
