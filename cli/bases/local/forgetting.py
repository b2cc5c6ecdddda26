"""Forgetting in this machine's knowledge base, with the settings' model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.removal import certificate as certificates
from colmlm.kb.removal.certificate import check_here, trusted_keys
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import CertificateCheck

if TYPE_CHECKING:
    from colmlm.kb.facts.records import Edit, FactRecord
    from colmlm.kb.removal.records import (
        Drift,
        ForgetPlan,
        Planning,
        Rates,
        RunRecord,
        SaidSurvivor,
        Verification,
    )
    from colmlm.kb.removal.selector import Selector


@dataclass(frozen=True, slots=True)
class LocalForgetting:
    """Implements `api.nouns.removal.ForgetVerbs` on this machine's knowledge base."""

    runtime: Runtime

    @property
    def _verbs(self) -> Forgetting:
        return Forgetting(self.runtime.kb)

    @contextmanager
    def _asking(self, model: bool, sample: int) -> Iterator[Forgetting]:
        """Gives the verbs that ask questions, with the model's encoder and the reader if `model`."""
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
        return certificates.issue_forget_certificate(self.runtime.kb, run_id)

    def check_certificate(self, text: bytes, *, key: str | None, public_key: str | None) -> CertificateCheck:
        return check_here(self.runtime.kb, text, trusted_keys([key] if key else (), public_key))
