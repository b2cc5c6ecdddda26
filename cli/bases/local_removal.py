"""Forgetting and erasures of this machine's knowledge base, with the models that they ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.errors import NotHeeded
from colmlm.kb.facts.records import PersonFindings
from colmlm.kb.removal.certificate import (
    check_here,
    issue_certificate,
    issue_forget_certificate,
    trusted_keys,
)
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.holds import Holds
from colmlm.kb.removal.persons import PersonPlan, find_person, read_plan
from colmlm.kb.removal.records import (
    SAMPLE,
    CertificateCheck,
    Erased,
    Erasing,
    ErasureReport,
    ErasureRequest,
    HeldSelection,
    Hold,
)
from colmlm.kb.removal.traces import Trace, save_traces

if TYPE_CHECKING:
    from colmlm.kb.access.records import TokenRecord
    from colmlm.kb.facts.records import Mentioned, Mentioning
    from colmlm.kb.removal.records import (
        ForgetPlan,
        Planning,
        Rates,
        RunRecord,
        Verification,
    )
    from colmlm.kb.removal.scan import ResidueReport
    from colmlm.kb.removal.selector import Selector


class LocalForgetting(Forgetting):
    """The verbs of forgetting. With `model`, the checkpoint encodes the questions, and the reader answers them too."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.kb)
        self.runtime = runtime

    @contextmanager
    def _forgetting_by(self, model: bool, sample: int) -> Iterator[Forgetting]:
        """Give the verbs that show progress over questions; with `model` they use the encoder and the reader."""
        self.runtime.kb.keysets.active()
        runtime = self.runtime
        models = (runtime.encoder, runtime.reader, runtime.sentence_encoder) if model else ()
        with runtime.telling.progress("Asking questions") as advance:
            yield Forgetting(runtime.kb, *models, sample=sample, on_questions=advance, on_read=advance)

    def plan(
        self, selector: Selector, *, model: bool = True, sample: int = SAMPLE, **how: Unpack[Planning]
    ) -> ForgetPlan:
        with self._forgetting_by(model, sample) as forgetting:
            return forgetting.plan(selector, **how)

    def verify(
        self, run_id: int, questions: Sequence[str] = (), *, model: bool = True, sample: int = SAMPLE
    ) -> Verification:
        with self._forgetting_by(model, sample) as forgetting:
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
    """The verbs of erasing. If an erasure needs two people, the token in COLMLM_TOKEN makes or approves the request."""

    runtime: Runtime

    @property
    def _requests(self) -> ErasureRequests:
        return ErasureRequests(self.runtime.kb)

    @property
    def needs_two(self) -> bool:
        """Tell whether `erase` only stores a request, which a second admin must approve."""
        return self.runtime.settings.erase_needs_two

    def find_person(
        self, name: str, *, also: Sequence[str] = (), decide: Mapping[str, str] | None = None
    ) -> PersonFindings:
        return find_person(self.runtime.kb, name, also=also, decide=decide)

    def preview(
        self, fact_ids: Sequence[int], *, mentions: Mentioned, plan: Mapping[str, Any] | None = None
    ) -> Erased:
        planned = self._read(plan)
        ids = fact_ids if planned is None else planned.fact_ids
        return Erasure(self.runtime.kb).preview(ids, mentions=mentions, plan=planned)

    def erase(
        self,
        fact_ids: Sequence[int],
        *,
        now: bool = False,
        scan: bool = False,
        traces_out: Path | None = None,
        plan: Mapping[str, Any] | None = None,
        **how: Unpack[Mentioning],
    ) -> Erasing:
        erasure, planned = Erasure(self.runtime.kb), self._read(plan)
        fact_ids = fact_ids if planned is None else planned.fact_ids
        if not fact_ids and planned is None:
            return Erasing(erasure.finish(now=now, on_step=self.runtime.telling.note))
        if self.needs_two:
            if now or scan or traces_out:
                raise NotHeeded("now", "an erasure by two takes it at approval. Pass it when you approve.")
            asked = self._requests.ask(fact_ids, token=self._token(), plan=planned, **how)
            return Erasing(None, asked)
        reach: Mentioned = how.get("mentions", "same-document") if planned is None else "none"
        traces = erasure.traces(fact_ids, mentions=reach, plan=planned) if scan or traces_out else ()
        if traces_out is not None:
            save_traces(traces, traces_out)
        before = scan_files(self.runtime, traces) if scan else None
        report = erasure.erase(fact_ids, plan=planned, now=now, on_step=self.runtime.telling.note, **how)
        after = scan_files(self.runtime, traces) if scan else None
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

    def _read(self, plan: Mapping[str, Any] | None) -> PersonPlan | None:
        return None if plan is None else read_plan(self.runtime.kb, plan)

    def _token(self) -> TokenRecord:
        return self._requests.token_of(self.runtime.user.token)


@dataclass(frozen=True, slots=True)
class LocalHolds:
    """The verbs of holds. If a hold needs two people, the token in COLMLM_TOKEN requests or approves it."""

    runtime: Runtime

    @property
    def _holds(self) -> Holds:
        return Holds(self.runtime.kb)

    def all(
        self,
        *,
        standing: bool = False,
        fact_id: int | None = None,
        document_id: int | None = None,
        after: int = 0,
        limit: int = 50,
    ) -> list[Hold]:
        return self._holds.all(
            standing=standing, fact_id=fact_id, document_id=document_id, after=after, limit=limit
        )

    def read(self, hold_id: int) -> Hold:
        return self._holds.read(hold_id)

    def place(self, **chosen: Unpack[HeldSelection]) -> Hold:
        return self._holds.place(token=self._token(), **chosen)

    def approve(self, hold_id: int) -> Hold:
        return self._holds.approve(hold_id, token=self._token())

    def release(self, hold_id: int, *, actor: str, reason: str) -> Hold:
        return self._holds.release(hold_id, actor=actor, reason=reason, token=self._token())

    def withdraw(self, hold_id: int) -> Hold:
        return self._holds.withdraw(hold_id, token=self._token())

    def _token(self) -> TokenRecord | None:
        return self._holds.token_of(self.runtime.user.token)


def scan_files(runtime: Runtime, traces: Sequence[Trace]) -> ResidueReport:
    """Search the files of the database server, index and home for traces of erased text, except shared ones."""
    with runtime.telling.progress("Reading files") as advance:
        return Erasure(runtime.kb).residue(traces, advance)
