"""What asks models in this machine's knowledge base: lookups, answers, misses, forgetting, erasures and keysets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.records import Answer, AnswerMode, AnswerOptions, AnswerThreshold, Calibrating
from colmlm.kb.errors import KeysetNotReady, NotHeeded
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.log.records import OnRecord
from colmlm.kb.lookup.lookups import Lookups
from colmlm.kb.lookup.options import LookupOptions
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.misses.misses import Misses
from colmlm.kb.misses.records import MissPage, MissSearch
from colmlm.kb.questions.sets import QuestionSets
from colmlm.kb.removal.certificate import (
    check_here,
    issue_certificate,
    issue_forget_certificate,
    trusted_keys,
)
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import SAMPLE, CertificateCheck, Erased, Erasing, ErasureReport, ErasureRequest
from colmlm.kb.removal.traces import Trace, save_traces

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from colmlm.kb.access.records import TokenRecord
    from colmlm.kb.facts.records import Mentioned, Mentioning
    from colmlm.kb.keys.records import Activating, Adapting, GateStanding, KeysetRecord
    from colmlm.kb.questions.records import AskingSet, QuestionRun
    from colmlm.kb.removal.records import (
        ForgetPlan,
        Planning,
        Rates,
        RunRecord,
        Verification,
    )
    from colmlm.kb.removal.scan import ResidueReport
    from colmlm.kb.removal.selector import Selector
    from colmlm.kb.switching.gate import ScoreDrift
    from colmlm.kb.switching.keysets import Keysets
    from colmlm.kb.switching.limits import GateLimits
    from colmlm.kb.switching.measures import Scores


class LocalForgetting(Forgetting):
    """The verbs of forgetting. With `model` questions are encoded by the checkpoint and read in the whole base."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.kb)
        self.runtime = runtime

    @contextmanager
    def _asking(self, model: bool, sample: int) -> Iterator[Forgetting]:
        """Give the verbs that ask questions, with the model's encoder and the reader if `model`."""
        self.runtime.kb.keysets.active()
        encoder, reader = (self.runtime.encoder, self.runtime.reader) if model else (None, None)
        with self.runtime.telling.progress("Asking questions") as advance:
            yield Forgetting(
                self.runtime.kb, encoder, reader, sample=sample, on_questions=advance, on_read=advance
            )

    def plan(
        self, selector: Selector, *, model: bool = True, sample: int = SAMPLE, **how: Unpack[Planning]
    ) -> ForgetPlan:
        with self._asking(model, sample) as forgetting:
            return forgetting.plan(selector, **how)

    def verify(
        self, run_id: int, questions: Sequence[str] = (), *, model: bool = True, sample: int = SAMPLE
    ) -> Verification:
        with self._asking(model, sample) as forgetting:
            return forgetting.verify(run_id, questions)

    def record(self, run_id: int) -> RunRecord:
        return self.run(run_id)[0]

    def before(self, run_id: int) -> Mapping[str, Rates]:
        return self.run(run_id)[1].before

    def certificate(self, run_id: int) -> str:
        return issue_forget_certificate(self.runtime.kb, run_id)

    def check_certificate(self, text: bytes, *, key: str | None, public_key: str | None) -> CertificateCheck:
        return check_here(self.runtime.kb, text, trusted_keys([key] if key else (), public_key))


@dataclass(frozen=True, slots=True)
class LocalErasures:
    """The verbs of erasing. Where two people are needed, COLMLM_TOKEN says which token asks."""

    runtime: Runtime

    @property
    def _requests(self) -> ErasureRequests:
        return ErasureRequests(self.runtime.kb)

    def preview(self, fact_ids: Sequence[int], *, mentions: Mentioned) -> Erased:
        return Erasure(self.runtime.kb).preview(fact_ids, mentions=mentions)

    def erase(
        self,
        fact_ids: Sequence[int],
        *,
        now: bool = False,
        scan: bool = False,
        traces_out: Path | None = None,
        **how: Unpack[Mentioning],
    ) -> Erasing:
        erasure = Erasure(self.runtime.kb)
        if not fact_ids:
            return Erasing(erasure.finish(now=now, on_step=self.runtime.telling.note))
        if self.runtime.settings.erase_needs_two:
            if now or scan or traces_out:
                raise NotHeeded("now", "an erasure by two takes it when it is approved.")
            return Erasing(None, self._requests.ask(fact_ids, token=self._token(), **how))
        reach: Mentioned = how.get("mentions", "same-document")
        traces = erasure.traces(fact_ids, mentions=reach) if scan or traces_out else ()
        if traces_out is not None:
            save_traces(traces, traces_out)
        before = scanned(self.runtime, traces) if scan else None
        report = erasure.erase(fact_ids, now=now, on_step=self.runtime.telling.note, **how)
        after = scanned(self.runtime, traces) if scan else None
        return Erasing(report, None, before, after, sum(trace.shared for trace in traces))

    def requests(self, *, waiting: bool) -> list[ErasureRequest]:
        return self._requests.requests(waiting=waiting)

    def read(self, request_id: int) -> ErasureRequest:
        return self._requests.read(request_id)

    def approve(self, request_id: int, *, now: bool) -> tuple[ErasureRequest, ErasureReport]:
        return self._requests.approve(
            request_id, token=self._token(), now=now, on_step=self.runtime.telling.note
        )

    def withdraw(self, request_id: int) -> ErasureRequest:
        return self._requests.withdraw(request_id, token=self._token())

    def certificate(self, seq: int) -> str:
        return issue_certificate(self.runtime.kb, seq)

    def _token(self) -> TokenRecord:
        return self._requests.token_of(self.runtime.user.token)


def scanned(runtime: Runtime, traces: Sequence[Trace]) -> ResidueReport:
    """Search the files of server, index and home for these traces, without the shared ones, which prove nothing."""
    with runtime.telling.progress("Reading files") as advance:
        return Erasure(runtime.kb).residue(traces, advance)


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
        return report.stored()

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
        self, keyset_id: int, *, corpus: str | None, kinds: str, checkpoint: Path | None
    ) -> KeysetRecord:
        from colmlm.cli.composition.keying import encoder_of, key_everything

        if (
            found := self.show(keyset_id)
        ).state == "retired":  # a rekey would give its checkpoint a new keyset
            raise KeysetNotReady(keyset_id, found.state)
        encoder = encoder_of(self.runtime, keyset_id, checkpoint)
        return key_everything(
            self.runtime, corpus=corpus, encoder=encoder, kinds=kinds, replace=True, named=checkpoint
        )

    def adapt(
        self, keyset_id: int, *, corpus: str | None, checkpoint: Path | None, **how: Unpack[Adapting]
    ) -> dict[str, Any]:
        from colmlm.cli.composition.keying import adapt, encoder_of

        if (found := self.show(keyset_id)).state == "retired":
            raise KeysetNotReady(keyset_id, found.state)
        encoder = encoder_of(self.runtime, keyset_id, checkpoint)
        return adapt(self.runtime.kb, encoder, self.runtime.telling, corpus, how)


@dataclass(frozen=True, slots=True)
class LocalLookups(Lookups):
    """The verbs of lookups, also by questions, which the settings' checkpoint encodes."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMisses(Misses):
    """The verbs of misses. A list groups what is new first, and a solution asks questions again."""

    runtime: Runtime

    @classmethod
    def of(cls, runtime: Runtime) -> LocalMisses:
        def answering(question: str, *, accepted_only: bool) -> list[int]:
            said = runtime.answers.ask(question, accepted_only=accepted_only)
            return [fact.fact_id for fact in said.facts]

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
    """Draw the threshold and histograms of the scores of questions with right and wrong facts, for each keyset."""
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
