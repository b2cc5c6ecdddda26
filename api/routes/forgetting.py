"""Forget runs: choose facts, see what forgetting them would do, forget them in one change, and undo that."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import get, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.rights import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.edits import WithToken, actor_of, keyed, result
from colmlm.api.schema.paging import Cursor, Limit, after_of, page
from colmlm.api.schema.schemas import PathId
from colmlm.api.schema.selectors import SelectorParts
from colmlm.api.wire.answers import EditResult, PlanView, RunView
from colmlm.api.wire.pages import Page
from colmlm.api.wire.pages import cursor as cursor_of
from colmlm.api.wire.requests import Threshold, Why
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.forgetting.records import (
    DEFAULT_POLICY,
    Drift,
    ForgetPlan,
    RunRecord,
    SaidSurvivor,
)
from colmlm.kb.forgetting.verbs import Forgetting

MOST_SHOWN = 100  # ids of a plan in one response; the facts of a run have a list of their own
Sample = Annotated[
    int, Meta(ge=1, le=500, description="How many facts are previewed and asked about at most")
]


class NewRun(Why, frozen=True, kw_only=True):
    """What to forget. `equivalents` are facts that say the same elsewhere.

    `policy` is what a question for a forgotten fact gets: no match, or the next fact. `radius` is how near an
    equivalent's key must be (null: the keyset's threshold). Without `model`, stored keys are used in place of encoded
    questions, and nothing is read.
    """

    selector: SelectorParts
    equivalents: Literal["include", "only-list", "exclude"] = "only-list"
    policy: Literal["abstain", "successor"] = DEFAULT_POLICY
    radius: Threshold | None = None
    allow_empty: bool = False
    sample: Sample = 100
    model: bool = True


@get("/forget-runs", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def list_forget_runs(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[RunRecord]:
    """List forget runs.

    Runs in every state (planned, applied, restored, erased), oldest first.
    """
    found = Forgetting(ports.kb).runs(after_of(cursor, "forget runs"), limit + 1)
    return page(found, limit, "forget runs", lambda run: (run.run_id,))


@post("/forget-runs", opt=needs(Right.edit, Lane.long_reads), responses=PROBLEMS, sync_to_thread=True)
def plan_forgetting(ports: FromPorts, request: WithToken, data: JSONBody[NewRun]) -> RunView:
    """Plan to forget facts.

    Chooses them and computes what forgetting them would do. It changes no fact; the plan is stored as a run. A server
    computes one plan at a time, and refuses a base of more facts than its settings allow.
    """
    forgetting = Forgetting(
        ports.kb,
        ports.encoder if data.model else None,
        ports.reader if data.model else None,
        sample=data.sample,
        largest=ports.kb.settings.plan_max_facts,
    )
    made = forgetting.plan(
        data.selector.selector(),
        actor=actor_of(request, data),
        reason=data.reason,
        equivalents=data.equivalents,
        radius=data.radius,
        policy=data.policy,
        allow_empty=data.allow_empty,
    )
    return _view(ports, made.run_id)


@get("/forget-runs/{run_id:int}", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def read_forget_run(ports: FromPorts, run_id: PathId) -> RunView:
    """Read a forget run.

    Gives its plan as it was made, its state, and its last verification.
    """
    return _view(ports, run_id)


@get("/forget-runs/{run_id:int}/facts", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def list_forget_run_facts(
    ports: FromPorts, run_id: PathId, cursor: Cursor = None, limit: Limit = 50
) -> Page[FactRecord]:
    """List the facts of a forget run.

    The facts that are to be deleted, or were, with those of their texts that still exist.
    """
    forgetting, start = Forgetting(ports.kb), after_of(cursor, "facts of a run")
    _, plan, _ = forgetting.run(run_id)
    shown = plan.fact_ids[start : start + limit]
    records = forgetting.facts(shown)
    end = start + len(shown)
    more = cursor_of("facts of a run", (end,)) if end < len(plan.fact_ids) else None
    return Page(items=[records[fact_id] for fact_id in shown if fact_id in records], next=more)


@get("/forget-runs/{run_id:int}/survivors", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def list_survivors(
    ports: FromPorts, run_id: PathId, cursor: Cursor = None, limit: Limit = 50
) -> Page[SaidSurvivor]:
    """List the places that would still answer.

    By the last verification that read the base, or else by the plan. They are outside the forgotten facts, question by
    question, with what each says now.
    """
    start = after_of(cursor, "survivors")
    found = Forgetting(ports.kb).survivors(run_id, start, limit + 1)
    more = cursor_of("survivors", (start + limit,)) if len(found) > limit else None
    return Page(items=found[:limit], next=more)


@get(
    "/forget-runs/{run_id:int}/drift",
    opt=needs(Right.audit, Lane.long_reads),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def read_drift(ports: FromPorts, run_id: PathId) -> Drift:
    """Read what changed since a plan.

    A plan with `stale` facts, which were edited since, is refused; the other facts were added since and would stay.
    """
    return Forgetting(ports.kb, largest=ports.kb.settings.plan_max_facts).drift(run_id)


@post(
    "/forget-runs/{run_id:int}/apply",
    status_code=200,
    opt=needs(Right.edit),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def apply_forgetting(ports: FromPorts, request: WithToken, run_id: PathId, data: JSONBody[Why]) -> EditResult:
    """Forget the facts of a plan.

    All facts are deleted in one change, or none. A plan that is out of date is refused.
    """
    return result(Forgetting(ports.kb).apply(run_id, actor=actor_of(request, data), reason=data.reason))


@post(
    "/forget-runs/{run_id:int}/restore",
    status_code=200,
    opt=needs(Right.edit),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def restore_forgotten(
    ports: FromPorts, request: WithToken, run_id: PathId, data: JSONBody[Why]
) -> EditResult:
    """Undo a forget run.

    Restores all its facts in one change, as they were.
    """
    edit = Forgetting(ports.kb).restore(run_id, actor=actor_of(request, data), reason=data.reason)
    return keyed(ports, edit)


def _view(ports: Ports, run_id: int) -> RunView:
    run, plan, verification = Forgetting(ports.kb).run(run_id)
    return RunView(run=run, plan=_plan(plan), verification=verification)


def _plan(made: ForgetPlan) -> PlanView:
    return PlanView(
        num_facts=len(made.fact_ids),
        selected=made.selected,
        num_equivalents=len(made.equivalents),
        equivalents=list(made.equivalents[:MOST_SHOWN]),
        included=made.included,
        num_conflicting=len(made.conflicting),
        conflicting=list(made.conflicting[:MOST_SHOWN]),
        successors=list(made.successors[:MOST_SHOWN]),
        affected=made.affected,
        previewed=made.previewed,
        collateral=made.collateral,
        live_facts=made.live_facts,
        unkeyed=made.unkeyed,
        keyset_id=made.keyset_id,
        checkpoint_id=made.checkpoint_id,
        threshold=made.threshold,
        radius=made.radius,
        before=dict(made.before),
        read=made.read,
        num_survivors=len(made.survivors),
        survivors=list(made.survivors[:MOST_SHOWN]),
    )
