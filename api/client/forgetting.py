"""Forgetting in a remote knowledge base, with the server's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from colmlm.api.client.api import Api
from colmlm.api.client.facts import RemoteFacts, edit_of
from colmlm.api.client.only_there import options
from colmlm.api.wire.answers import EditResult, PlanView, RunView
from colmlm.kb.facts.records import Edit, FactRecord
from colmlm.kb.removal.records import (
    CertificateCheck,
    Drift,
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


@dataclass(frozen=True, slots=True)
class RemoteForgetting:
    """The verbs of `api.nouns.removal.ForgetVerbs` over the API.

    The API gives all facts of a plan, and the first hundred entries of its other lists.
    """

    api: Api

    def plan(self, selector: Selector, *, model: bool, sample: int, **how: Unpack[Planning]) -> ForgetPlan:
        body = {"selector": selector.to_json(), "model": model, "sample": sample, **options(Planning, how)}
        body["on_behalf_of"] = body.pop("actor") or None
        return self._plan(self.api.edit("/forget-runs", RunView, body))

    def runs(self, after: int, limit: int) -> list[RunRecord]:
        return self.api.listed("/forget-runs", RunRecord, "forget runs", after=after, limit=limit)

    def record(self, run_id: int) -> RunRecord:
        return self._view(run_id).run

    def run(self, run_id: int) -> tuple[RunRecord, ForgetPlan, Verification | None]:
        view = self._view(run_id)
        return view.run, self._plan(view), view.verification

    def before(self, run_id: int) -> Mapping[str, Rates]:
        return self._view(run_id).plan.before

    def drift(self, run_id: int) -> Drift:
        return self.api.get(f"/forget-runs/{run_id}/drift", Drift)

    def apply(self, run_id: int, *, actor: str, reason: str) -> Edit:
        return self._edit(run_id, "apply", actor, reason)

    def restore(self, run_id: int, *, actor: str, reason: str) -> Edit:
        return self._edit(run_id, "restore", actor, reason)

    def verify(self, run_id: int, questions: Sequence[str], *, model: bool, sample: int) -> Verification:
        body = {"questions": questions, "sample": sample, "model": model}
        return self.api.ask(f"/forget-runs/{run_id}/verify", Verification, body)

    def survivors(self, run_id: int, after: int, limit: int) -> list[SaidSurvivor]:
        path = f"/forget-runs/{run_id}/survivors"
        return self.api.listed(path, SaidSurvivor, "survivors", after=after, limit=limit)

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

    def _edit(self, run_id: int, verb: str, actor: str, reason: str) -> Edit:
        body = {"on_behalf_of": actor or None, "reason": reason}
        return edit_of(self.api.edit(f"/forget-runs/{run_id}/{verb}", EditResult, body))

    def _plan(self, view: RunView) -> ForgetPlan:
        run, plan = view.run, view.plan
        facts = self.api.listed(f"/forget-runs/{run.run_id}/facts", FactRecord, "facts of a run")
        self._say_cut(plan)
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

    def _say_cut(self, plan: PlanView) -> None:
        numbers = (plan.num_equivalents, plan.num_conflicting, plan.previewed, plan.num_survivors)
        for name, number in zip(_LISTS, numbers, strict=True):
            if number > (told := len(getattr(plan, name))):
                self.api.telling.note(f"The server tells the first {told} of {number} {name}.")
