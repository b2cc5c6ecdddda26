"""The verbs of forgetting and erasing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

from colmlm.kb.facts.records import Mentioning

if TYPE_CHECKING:
    from colmlm.kb.facts.records import Edit, FactRecord, Mentioned
    from colmlm.kb.removal.records import (
        CertificateCheck,
        Drift,
        Erased,
        ErasureReport,
        ErasureRequest,
        ForgetPlan,
        Planning,
        Rates,
        RunRecord,
        SaidSurvivor,
        Verification,
    )
    from colmlm.kb.removal.scan import ResidueReport
    from colmlm.kb.removal.selector import Selector


class ForgetVerbs(Protocol):
    """What forgetting can be asked for, as `kb.removal.forget.Forgetting` describes it.

    With `model` questions are encoded by the checkpoint and read in the whole base; else stored keys are used instead.
    """

    def plan(
        self, selector: Selector, *, model: bool, sample: int, **how: Unpack[Planning]
    ) -> ForgetPlan: ...

    def runs(self, after: int, limit: int) -> list[RunRecord]: ...

    def record(self, run_id: int) -> RunRecord: ...

    def run(self, run_id: int) -> tuple[RunRecord, ForgetPlan, Verification | None]: ...

    def before(self, run_id: int) -> Mapping[str, Rates]:
        """Gives how the checks were answered when the run was planned."""
        ...

    def drift(self, run_id: int) -> Drift: ...

    def apply(self, run_id: int, *, actor: str, reason: str) -> Edit: ...

    def restore(self, run_id: int, *, actor: str, reason: str) -> Edit: ...

    def verify(self, run_id: int, questions: Sequence[str], *, model: bool, sample: int) -> Verification: ...

    def survivors(self, run_id: int, after: int, limit: int) -> list[SaidSurvivor]:
        """Gives the places that would still answer, past the first `after`."""
        ...

    def facts(self, fact_ids: Sequence[int]) -> dict[int, FactRecord]:
        """Gives those of these facts that the base still has, by id."""
        ...

    def certificate(self, run_id: int) -> str:
        """Gives the certificate of a run, byte for byte as it was signed."""
        ...

    def check_certificate(self, text: bytes, *, key: str | None, public_key: str | None) -> CertificateCheck:
        """Compares a certificate with the base, and checks that the base's own key signed it, or the one given."""
        ...


@dataclass(frozen=True, slots=True)
class Erasing:
    """The outcome of `erase`: a report of the erasure, or the request that waits for a second token.

    `before` and `after` are the residue, where files were scanned; `shared` counts the traces that prove nothing.
    """

    report: ErasureReport | None
    request: ErasureRequest | None = None
    before: ResidueReport | None = None
    after: ResidueReport | None = None
    shared: int = 0


class EraseOptions(Mentioning, total=False):
    """How far an erasure goes: with `now` as far as the server permits.

    With `scan` all files are searched before and after; `traces_out` is a file to write what they are searched for.
    """

    now: bool
    scan: bool
    traces_out: Path | None


class ErasureVerbs(Protocol):
    """What erasure can be asked for, as `kb.removal.erase` describes it."""

    def preview(self, fact_ids: Sequence[int], *, mentions: Mentioned) -> Erased: ...

    def erase(self, fact_ids: Sequence[int], **how: Unpack[EraseOptions]) -> Erasing:
        """Erases these facts, or requests it where that takes two people; with no facts, takes earlier erasures on."""
        ...

    def requests(self, *, waiting: bool) -> list[ErasureRequest]: ...

    def read(self, request_id: int) -> ErasureRequest: ...

    def approve(self, request_id: int, *, now: bool) -> tuple[ErasureRequest, ErasureReport]: ...

    def withdraw(self, request_id: int) -> ErasureRequest: ...

    def certificate(self, seq: int) -> str:
        """Gives the certificate of the erasure that is change `seq`, byte for byte as it was signed."""
        ...
