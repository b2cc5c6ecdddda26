"""Forgetting, erasures and keysets of this machine's knowledge base, with the models that they ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.errors import NotHeeded, refusals
from colmlm.kb.removal.certificate import (
    check_here,
    issue_certificate,
    issue_forget_certificate,
    trusted_keys,
)
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import CertificateCheck, Erased, Erasing, ErasureReport, ErasureRequest
from colmlm.kb.removal.traces import Trace, save_traces

if TYPE_CHECKING:
    from colmlm.kb.access.records import TokenRecord
    from colmlm.kb.facts.records import Edit, FactRecord, Mentioned, Mentioning
    from colmlm.kb.keys.records import Activating, Adapting, GateLimits, GateStanding, KeysetRecord
    from colmlm.kb.removal.records import (
        Drift,
        ForgetPlan,
        Planning,
        Rates,
        RunRecord,
        SaidSurvivor,
        Verification,
    )
    from colmlm.kb.removal.scan import ResidueReport
    from colmlm.kb.removal.selector import Selector
    from colmlm.kb.switching.keysets import Keysets


@dataclass(frozen=True, slots=True)
class LocalForgetting:
    """The verbs of forgetting. With `model` questions are encoded by the checkpoint and read in the whole base."""

    runtime: Runtime

    @property
    def _verbs(self) -> Forgetting:
        return Forgetting(self.runtime.kb)

    @contextmanager
    def _asking(self, model: bool, sample: int) -> Iterator[Forgetting]:
        """Give the verbs that ask questions, with the model's encoder and the reader if `model`."""
        self.runtime.kb.keysets.active()
        encoder, reader = (self.runtime.encoder, self.runtime.reader) if model else (None, None)
        with self.runtime.telling.progress("Asking questions") as advance:
            yield Forgetting(
                self.runtime.kb, encoder, reader, sample=sample, on_questions=advance, on_read=advance
            )

    def plan(self, selector: Selector, *, model: bool, sample: int, **how: Unpack[Planning]) -> ForgetPlan:
        with self._asking(model, sample) as forgetting:
            return forgetting.plan(selector, **how)

    def runs(self, after: int, limit: int) -> list[RunRecord]:
        return self._verbs.runs(after, limit)

    def record(self, run_id: int) -> RunRecord:
        return self._verbs.run(run_id)[0]

    def run(self, run_id: int) -> tuple[RunRecord, ForgetPlan, Verification | None]:
        return self._verbs.run(run_id)

    def before(self, run_id: int) -> Mapping[str, Rates]:
        return self._verbs.run(run_id)[1].before

    def drift(self, run_id: int) -> Drift:
        return self._verbs.drift(run_id)

    def apply(self, run_id: int, *, actor: str, reason: str) -> Edit:
        return self._verbs.apply(run_id, actor=actor, reason=reason)

    def restore(self, run_id: int, *, actor: str, reason: str) -> Edit:
        return self._verbs.restore(run_id, actor=actor, reason=reason)

    def verify(self, run_id: int, questions: Sequence[str], *, model: bool, sample: int) -> Verification:
        with self._asking(model, sample) as forgetting:
            return forgetting.verify(run_id, questions)

    def survivors(self, run_id: int, after: int, limit: int) -> list[SaidSurvivor]:
        return self._verbs.survivors(run_id, after, limit)

    def facts(self, fact_ids: Sequence[int]) -> dict[int, FactRecord]:
        return self._verbs.facts(fact_ids)

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
            from colmlm.cli.composition.score_plots import score_histograms

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
            raise refusals.keyset_not_ready(keyset_id, found.state)
        encoder = encoder_of(self.runtime, keyset_id, checkpoint)
        return key_everything(
            self.runtime, corpus=corpus, encoder=encoder, kinds=kinds, replace=True, named=checkpoint
        )

    def adapt(
        self, keyset_id: int, *, corpus: str | None, checkpoint: Path | None, **how: Unpack[Adapting]
    ) -> dict[str, Any]:
        from colmlm.cli.composition.adapting import adapt
        from colmlm.cli.composition.keying import encoder_of

        if (found := self.show(keyset_id)).state == "retired":
            raise refusals.keyset_not_ready(keyset_id, found.state)
        encoder = encoder_of(self.runtime, keyset_id, checkpoint)
        return adapt(self.runtime.kb, encoder, self.runtime.telling, corpus, how)
