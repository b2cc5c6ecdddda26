"""Forgetting and erasing in a remote knowledge base: with the server's model, and not in the server's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from colmlm.api.client.api import Resource, edit_verb, get_verb, list_verb, on_behalf, options, refuse
from colmlm.api.client.facts import RemoteFacts, edit_of
from colmlm.api.wire.answers import EditResult, ErasureAnswer, PlanView, RunView
from colmlm.kb.errors import refusals
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.removal.records import (
    SAMPLE,
    CertificateCheck,
    Drift,
    Erased,
    EraseOptions,
    Erasing,
    ErasureReport,
    ErasureRequest,
    ForgetPlan,
    Planning,
    Rates,
    RunRecord,
    SaidSurvivor,
    Verification,
)

if TYPE_CHECKING:
    from colmlm.kb.removal.selector import Selector

_LISTS = ("equivalents", "conflicting", "successors", "survivors")


class RemoteForgetting(Resource):
    """The verbs of `cli.bases.local.LocalForgetting`.

    The API gives all facts of a plan, and the first hundred entries of its other lists.
    """

    runs = list_verb("/forget-runs", RunRecord, "forget runs", "after?", "limit?")
    drift = get_verb("/forget-runs/{run_id}/drift", Drift)
    apply = edit_verb("/forget-runs/{run_id}/apply", EditResult, "*", "actor", "reason", to=edit_of)
    restore = edit_verb("/forget-runs/{run_id}/restore", EditResult, "*", "actor", "reason", to=edit_of)
    verify = edit_verb(
        "/forget-runs/{run_id}/verify", Verification, "questions?", "*", "model?", "sample?", is_edit=False
    )
    survivors = list_verb("/forget-runs/{run_id}/survivors", SaidSurvivor, "survivors", "after?", "limit?")

    def plan(
        self, selector: Selector, *, model: bool = True, sample: int = SAMPLE, **how: Unpack[Planning]
    ) -> ForgetPlan:
        body = {"selector": selector.to_json(), "model": model, "sample": sample, **options(Planning, how)}
        return self._plan(self.api.edit("/forget-runs", RunView, on_behalf(body)))

    def record(self, run_id: int) -> RunRecord:
        return self._view(run_id).run

    def run(self, run_id: int) -> tuple[RunRecord, ForgetPlan, Verification | None]:
        view = self._view(run_id)
        return view.run, self._plan(view), view.verification

    def before(self, run_id: int) -> Mapping[str, Rates]:
        return self._view(run_id).plan.before

    def facts(self, fact_ids: Sequence[int]) -> dict[int, FactRecord]:
        wanted = sorted({fact_id for fact_id in fact_ids if fact_id})
        return {fact.fact_id: fact for fact in RemoteFacts(self.api).show_many(wanted)}

    def certificate(self, run_id: int) -> str:
        return self.api.text(f"/forget-runs/{run_id}/certificate")

    def check_certificate(self, text: bytes, *, key: str | None, public_key: str | None) -> CertificateCheck:
        said = {"text": text.decode("utf-8", "replace"), "key": key, "public_key": public_key}
        return self.api.ask("/certificates/check", CertificateCheck, said)

    def _view(self, run_id: int) -> RunView:
        return self.api.get(f"/forget-runs/{run_id}", RunView)

    def _plan(self, view: RunView) -> ForgetPlan:
        run, plan = view.run, view.plan
        facts = self.api.listed(f"/forget-runs/{run.run_id}/facts", FactRecord, "facts of a run")
        self._note_cut(plan)
        told = {name: getattr(plan, name) for name in ForgetPlan.__dataclass_fields__ if hasattr(plan, name)}
        told |= {name: tuple(told[name]) for name in _LISTS}
        return ForgetPlan(
            run_id=run.run_id,
            policy=run.policy,
            fact_ids=tuple(fact.fact_id for fact in facts),
            planned_seq=run.planned_seq,
            selector_digest="",  # not in the API's responses; the certificate has it
            **told,
        )

    def _note_cut(self, plan: PlanView) -> None:
        """Say which lists of a plan the API gives in part."""
        numbers = (plan.num_equivalents, plan.num_conflicting, plan.previewed, plan.num_survivors)
        for name, number in zip(_LISTS, numbers, strict=True):
            if number > (told := len(getattr(plan, name))):
                self.api.telling.note(f"The server tells the first {told} of {number} {name}.")


class RemoteErasures(Resource):
    """The verbs of `cli.bases.local.LocalErasures`. They reach the server's indexes and may need a second token."""

    preview = edit_verb("/erasures/preview", Erased, "fact_ids", "*", "mentions", is_edit=False)
    withdraw = edit_verb("/erasures/{request_id}/withdraw", ErasureRequest)

    def erase(self, fact_ids: Sequence[int], **how: Unpack[EraseOptions]) -> Erasing:
        body = {"fact_ids": fact_ids, **options(EraseOptions, how)}
        refuse(**{name: body.pop(name, None) for name in ("now", "scan", "traces_out")})
        told = self.api.edit("/erasures", ErasureAnswer, on_behalf(body))
        return Erasing(told.report, told.request)

    def requests(self, *, waiting: bool) -> list[ErasureRequest]:
        found = self.api.listed("/erasures", ErasureRequest, "erasures")
        return [asked for asked in found if not waiting or asked.state == "waiting"]

    def read(self, request_id: int) -> ErasureRequest:
        for asked in self.requests(waiting=False):
            if asked.erasure_request_id == request_id:
                return asked
        raise refusals.erasure_request_not_found(request_id)

    def approve(self, request_id: int, *, now: bool) -> tuple[ErasureRequest, ErasureReport]:
        refuse(now=now)
        told = self.api.edit(f"/erasures/{request_id}/approve", ErasureAnswer)
        assert told.request is not None and told.report is not None, "an approved erasure has both"
        return told.request, told.report

    def certificate(self, seq: int) -> str:
        return self.api.text(f"/changes/{seq}/certificate")
