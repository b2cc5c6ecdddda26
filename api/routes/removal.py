"""Removal: forget sets of facts and undo that, erase facts for good, give evidence of either, and hold off both."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Response, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, field

from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, in_thread
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import (
    Cursor,
    Limit,
    PathId,
    SelectorParts,
    WithToken,
    after_of,
    edit_in_scope,
    page,
)
from colmlm.api.routes.responses import edit_result, key_and_answer, on_record
from colmlm.api.wire import (
    MAX_FACTS_PER_EDIT,
    MAX_ID,
    EditResult,
    ErasureAnswer,
    Id,
    Page,
    PlanView,
    Question,
    Request,
    RunView,
    SigningKey,
    Threshold,
    Why,
)
from colmlm.api.wire import cursor as cursor_of
from colmlm.kb.facts.records import FactRecord, Mentioned, PersonFindings
from colmlm.kb.log.signing import key_names, signing_key, write_pem
from colmlm.kb.removal.certificate import (
    check_here,
    check_offline,
    issue_certificate,
    issue_forget_certificate,
    trusted_keys,
)
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.holds import Holds
from colmlm.kb.removal.persons import find_person, read_plan
from colmlm.kb.removal.records import (
    DEFAULT_POLICY,
    CertificateCheck,
    Drift,
    Erased,
    ErasureRequest,
    ForgetPlan,
    Hold,
    RunRecord,
    SaidSurvivor,
    Verification,
)

MOST_SHOWN = 100  # ids of a plan in one response; the facts of a run have a list of their own
Sample = Annotated[
    int, Meta(ge=1, le=500, description="How many facts are previewed and asked about at most")
]


class NewRun(Why, frozen=True, kw_only=True):
    """Choose what to forget. `equivalents` are facts that say the same elsewhere.

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


@get("/forget-runs", **in_thread(Right.audit, scoped=CorpusLimit.rows))
def list_forget_runs(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[RunRecord]:
    """List forget runs.

    Runs in every state (planned, applied, restored, erased), oldest first.
    """
    found = Forgetting(ports.kb).runs(after_of(cursor, "forget runs"), limit + 1)
    return page(found, limit, "forget runs", lambda run: (run.run_id,))


@post("/forget-runs", **in_thread(Right.edit, Limiter.long_reads, scoped=CorpusLimit.rows))
def plan_forgetting(ports: FromPorts, request: WithToken, data: JSONBody[NewRun]) -> RunView:
    """Plan to forget facts.

    Chooses them and computes what forgetting them would do. It changes no fact; the plan is stored as a run. A server
    computes one plan at a time, and refuses a base of more facts than its settings allow. With a token of some corpora
    all that it chooses, counts and asks is of these.
    """
    made = _forgetting(ports, data, ports.kb.settings.plan_max_facts).plan(
        data.selector.selector(),
        **on_record(request, data),
        equivalents=data.equivalents,
        radius=data.radius,
        policy=data.policy,
        allow_empty=data.allow_empty,
    )
    return _view(ports, made.run_id)


@get("/forget-runs/{run_id:int}", **in_thread(Right.audit, scoped=CorpusLimit.rows))
def read_forget_run(ports: FromPorts, run_id: PathId) -> RunView:
    """Read a forget run.

    Gives its plan as it was made, its state, and its last verification, which a token of some corpora is not shown.
    """
    return _view(ports, run_id)


@get("/forget-runs/{run_id:int}/facts", **in_thread(Right.audit, scoped=CorpusLimit.rows))
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


@get("/forget-runs/{run_id:int}/survivors", **in_thread(Right.audit, scoped=CorpusLimit.rows))
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


@get("/forget-runs/{run_id:int}/drift", **in_thread(Right.audit, Limiter.long_reads, scoped=CorpusLimit.rows))
def read_drift(ports: FromPorts, run_id: PathId) -> Drift:
    """Read what changed since a plan.

    A plan with `stale` facts, which were edited since, is refused; the other facts were added since and would stay.
    """
    return Forgetting(ports.kb, largest=ports.kb.settings.plan_max_facts).drift(run_id)


@post("/forget-runs/{run_id:int}/apply", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets))
def apply_forgetting(ports: FromPorts, request: WithToken, run_id: PathId, data: JSONBody[Why]) -> EditResult:
    """Forget the facts of a plan.

    All facts are deleted in one change, or none. A plan that is out of date is refused.
    """
    edit_in_scope(ports, run_id=run_id)
    return edit_result(Forgetting(ports.kb).apply(run_id, **on_record(request, data)))


@post(
    "/forget-runs/{run_id:int}/restore", status_code=200, **in_thread(Right.edit, scoped=CorpusLimit.targets)
)
def restore_forgotten(
    ports: FromPorts, request: WithToken, run_id: PathId, data: JSONBody[Why]
) -> EditResult:
    """Undo a forget run.

    Restores all its facts in one change, as they were. A run that is only planned is removed instead, in one change of
    kind `discard-plan`.
    """
    edit_in_scope(ports, run_id=run_id)
    edit = Forgetting(ports.kb).restore(run_id, **on_record(request, data))
    return key_and_answer(ports, edit)


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


# Evidence of forgetting: verify a forget run, and issue or check its signed certificate.


class Verifying(Request, frozen=True, kw_only=True):
    """Choose how to verify: at most `sample` facts, and these `questions` too.

    Without `model`, stored keys are used in place of encoded questions, and nothing is read.
    """

    questions: Annotated[list[Question], Meta(max_length=100)] = field(default_factory=list)
    sample: Sample = 100
    model: bool = True


class CertificateText(Request, frozen=True, kw_only=True):
    """The exact text of a certificate's file, and who must have signed it: by default this base.

    `key` is the signing key's id or fingerprint, `public_key` the key as PEM. With `offline`, it is not compared with
    this base.
    """

    text: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    public_key: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    offline: bool = False


@post("/forget-runs/{run_id:int}/verify", status_code=200, **in_thread(Right.audit, Limiter.long_reads))
def verify_forgetting(ports: FromPorts, run_id: PathId, data: JSONBody[Verifying]) -> Verification:
    """Verify that facts are forgotten.

    Asks for up to `sample` of them by every kind of query, and stores the results with the run. `level` 0 says that one
    was found. A job of kind `verify` asks for more of them.
    """
    if data.questions and data.model:
        ports.need_encoder()
    return _forgetting(ports, data).verify(run_id, data.questions)


def _forgetting(ports: Ports, data: NewRun | Verifying, largest: int | None = None) -> Forgetting:
    """Give the verbs of forgetting, with the models of the server if the request wants them."""
    models = (ports.encoder, ports.reader, ports.sentences) if data.model else ()
    return Forgetting(ports.kb, *models, sample=data.sample, largest=largest)


@get("/forget-runs/{run_id:int}/certificate", **in_thread(Right.audit))
def read_certificate(ports: FromPorts, run_id: PathId) -> Response[dict[str, Any]]:
    """Get a forget run's certificate.

    Gives signed evidence of a verified run, without any fact's text, that can be checked offline. Keep the bytes
    unchanged: any other encoding of the same JSON is refused.
    """
    text: Any = issue_forget_certificate(
        ports.kb, run_id
    ).encode()  # the signed bytes, which re-encoding would change
    return Response(text, media_type="application/json")


@get("/signing-key", **in_thread(Right.audit))
def read_signing_key(ports: FromPorts) -> SigningKey:
    """Get the public key that evidence is signed with.

    Keep it outside this server: with it anybody can check certificates, heads and logs without the server.
    """
    public = signing_key(ports.kb.settings.home).public_key()
    names = key_names(public)
    return SigningKey(keyid=names.keyid, fingerprint=names.fingerprint, pem=write_pem(public))


@post("/certificates/check", status_code=200, **in_thread(Right.audit, Limiter.long_reads))
def check_certificate(ports: FromPorts, data: JSONBody[CertificateText]) -> CertificateCheck:
    """Check a certificate.

    Checks that it is signed by this base's key or the named one, that it does not contradict itself, that its run and
    change exist in this base, and that the run is still applied or erased. `checks` holds each result; `ok` is true
    only if all hold.
    """
    text = data.text.encode("utf-8", "surrogatepass")
    trusted = trusted_keys(() if data.key is None else (data.key,), data.public_key)
    return check_offline(text, trusted) if data.offline else check_here(ports.kb, text, trusted)


# Erasure: remove facts for good, by one admin's token or, if the settings say so, by two.

FactIds = Annotated[list[Id], Meta(max_length=MAX_FACTS_PER_EDIT)]
PersonWords = Annotated[str, Meta(min_length=1, max_length=200)]


class Chosen(Request, frozen=True, kw_only=True):
    """Facts to preview the erasure of: live, deleted or erased before. All else is as in `NewErasure`."""

    fact_ids: FactIds = field(default_factory=list)
    mentions: Mentioned = "same-document"
    plan: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _require_one(self.fact_ids, self.plan)


class NewErasure(Why, frozen=True, kw_only=True):
    """Facts to erase, all or none: live, deleted or erased before. Or the plan for a person, of /v1/persons/find.

    `mentions` says where else their values are redacted: in their own documents, in all documents, or nowhere. A plan
    names the places itself.
    """

    fact_ids: FactIds = field(default_factory=list)
    mentions: Mentioned = "same-document"
    plan: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _require_one(self.fact_ids, self.plan)


def _require_one(fact_ids: list[int], plan: dict[str, Any] | None) -> None:
    if bool(fact_ids) == (plan is not None):
        raise ValueError("Give either fact_ids or a plan.")


class PersonSought(Request, frozen=True, kw_only=True):
    """The name of a person, and other spellings or names of the same person.

    `decide` says of places by their names whether to erase what is not sure there, too, or to keep what is.
    """

    name: PersonWords
    also: Annotated[list[PersonWords], Meta(max_length=50)] = field(default_factory=list)
    decide: Annotated[dict[str, Literal["erase", "keep"]], Meta(max_length=10_000)] = field(
        default_factory=dict
    )


@post("/persons/find", status_code=200, **in_thread(Right.audit, Limiter.long_reads))
def find_person_named(ports: FromPorts, data: JSONBody[PersonSought]) -> PersonFindings:
    """Find a person.

    Gives every place that names the person, what is not sure apart, and a signed plan to erase what is sure. Changes
    nothing. Send the plan to `POST /v1/erasures` unchanged.
    """
    return find_person(ports.kb, data.name, also=data.also, decide=data.decide)


@post("/erasures/preview", status_code=200, **in_thread(Right.admin, Limiter.long_reads))
def preview_erasure(ports: FromPorts, data: JSONBody[Chosen]) -> Erased:
    """Preview an erasure.

    Gives the documents, outputs, forget runs and keys that it would touch, the other facts that say the same, and the
    places that would still say it (`left`). Changes nothing.
    """
    plan = None if data.plan is None else read_plan(ports.kb, data.plan)
    fact_ids = data.fact_ids if plan is None else plan.fact_ids
    return Erasure(ports.kb).preview(fact_ids, mentions=data.mentions, plan=plan)


@post("/erasures", status_code=200, **in_thread(Right.admin))
def erase_facts(ports: FromPorts, request: WithToken, data: JSONBody[NewErasure]) -> ErasureAnswer:
    """Erase facts for good.

    They cannot be restored. The erasure reaches the database and the indexes (level 2); `colmlm erase --now` also
    removes the residue from files. If `level` is below `asked_level`, the facts are erased, but an index or a snapshot
    still holds them: `levels` says which, and what to do. Where the settings require two tokens, this only makes a
    request, which another admin's token approves.

    For a fact that was erased before, it redacts the texts that still say it; where there are none, `seq` is null.
    """
    signed, plan = on_record(request, data), None if data.plan is None else read_plan(ports.kb, data.plan)
    fact_ids = data.fact_ids if plan is None else plan.fact_ids
    if ports.kb.settings.erase_needs_two:
        asked = ErasureRequests(ports.kb).ask(
            fact_ids, token=request.user, **signed, mentions=data.mentions, plan=plan
        )
        return ErasureAnswer(report=None, request=asked)
    report = Erasure(ports.kb).erase(fact_ids, **signed, mentions=data.mentions, plan=plan)
    return ErasureAnswer(report=report, request=None)


@get("/erasures", **in_thread(Right.audit))
def list_erasures(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[ErasureRequest]:
    """List the erasures that were asked for.

    Requests for erasure, where two tokens are required: waiting and decided ones, oldest first.
    """
    after = after_of(cursor, "erasures")
    found = [asked for asked in ErasureRequests(ports.kb).requests() if asked.erasure_request_id > after]
    return page(found[: limit + 1], limit, "erasures", lambda asked: (asked.erasure_request_id,))


@post("/erasures/{request_id:int}/approve", status_code=200, **in_thread(Right.admin))
def approve_erasure(ports: FromPorts, request: WithToken, request_id: PathId) -> ErasureAnswer:
    """Approve an erasure.

    Takes another token than the one that made the request. The facts are erased for good. If `level` is below
    `asked_level`, an index or a snapshot still holds them: `levels` says which, and what to do.
    """
    asked, report = ErasureRequests(ports.kb).approve(request_id, token=request.user)
    return ErasureAnswer(report=report, request=asked)


@post("/erasures/{request_id:int}/withdraw", status_code=200, **in_thread(Right.admin))
def withdraw_erasure(ports: FromPorts, request: WithToken, request_id: PathId) -> ErasureRequest:
    """Withdraw an erasure that waits.

    The request is closed and nothing is erased.
    """
    return ErasureRequests(ports.kb).withdraw(request_id, token=request.user)


@get("/changes/{seq:int}/certificate", **in_thread(Right.audit))
def read_erasure_certificate(ports: FromPorts, seq: PathId) -> Response[dict[str, Any]]:
    """Get the certificate of an erasure.

    Gives signed evidence, as of now, that the facts of this change are erased, without any text, that can be checked
    offline. Keep the bytes unchanged: any other encoding of the same JSON is refused.
    """
    text: Any = issue_certificate(ports.kb, seq).encode()  # re-encoded bytes would not match
    return Response(text, media_type="application/json")


# Holds: keep facts, documents and corpora from being deleted by a rule, or erased.

MaybeId = Annotated[int | None, QueryParameter(ge=1, le=MAX_ID, description="Only those that keep this one")]
Standing = Annotated[bool, QueryParameter(description="Only those that stand")]
Ids = Annotated[list[Id], Meta(max_length=MAX_FACTS_PER_EDIT)]
CorpusName = Annotated[str, Meta(min_length=1, max_length=1000)]


class NewHold(Why, frozen=True, kw_only=True):
    """Name what to hold: facts and documents by id, with all that shares their documents, and corpora by name."""

    fact_ids: Ids = field(default_factory=list)
    document_ids: Ids = field(default_factory=list)
    corpora: Annotated[list[CorpusName], Meta(max_length=100)] = field(default_factory=list)


@get("/holds", **in_thread(Right.audit))
def list_holds(
    ports: FromPorts,
    standing: Standing = False,
    fact_id: MaybeId = None,
    document_id: MaybeId = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[Hold]:
    """List the holds.

    In every state (asked, standing, release-asked, released, withdrawn), oldest first.
    """
    found = Holds(ports.kb).all(
        standing=standing,
        fact_id=fact_id,
        document_id=document_id,
        after=after_of(cursor, "holds"),
        limit=limit + 1,
    )
    return page(found, limit, "holds", lambda hold: (hold.hold_id,))


@get("/holds/{hold_id:int}", **in_thread(Right.audit))
def read_hold(ports: FromPorts, hold_id: PathId) -> Hold:
    """Read a hold.

    Gives what it keeps, who placed and released it, and why.
    """
    return Holds(ports.kb).read(hold_id)


@post("/holds", **in_thread(Right.edit))
def place_hold(ports: FromPorts, request: WithToken, data: JSONBody[NewHold]) -> Hold:
    """Place a hold.

    While it stands, nothing that it keeps is deleted by a rule or erased. Where the settings require two tokens for
    that, the hold is `asked` and stands once another token approves it.
    """
    return Holds(ports.kb).place(
        token=request.user,
        fact_ids=data.fact_ids,
        document_ids=data.document_ids,
        corpora=data.corpora,
        **on_record(request, data),
    )


@post("/holds/{hold_id:int}/approve", status_code=200, **in_thread(Right.edit))
def approve_hold(ports: FromPorts, request: WithToken, hold_id: PathId) -> Hold:
    """Approve a hold that was asked for.

    Takes another token than the one that asked.
    """
    return Holds(ports.kb).approve(hold_id, token=request.user)


@post("/holds/{hold_id:int}/release", status_code=200, **in_thread(Right.edit))
def release_hold(ports: FromPorts, request: WithToken, hold_id: PathId, data: JSONBody[Why]) -> Hold:
    """Release a hold.

    Where the settings require two tokens for that, the first asks for it, and the hold stands until another token sends
    this request, too.
    """
    return Holds(ports.kb).release(hold_id, token=request.user, **on_record(request, data))


@post("/holds/{hold_id:int}/withdraw", status_code=200, **in_thread(Right.edit))
def withdraw_from_hold(ports: FromPorts, request: WithToken, hold_id: PathId) -> Hold:
    """Withdraw what waits for a second token.

    A hold that was asked for never stands then, and one whose release was asked for goes on standing.
    """
    return Holds(ports.kb).withdraw(hold_id, token=request.user)


HANDLERS = (
    list_holds,
    read_hold,
    place_hold,
    approve_hold,
    release_hold,
    withdraw_from_hold,
    list_forget_runs,
    plan_forgetting,
    read_forget_run,
    list_forget_run_facts,
    list_survivors,
    read_drift,
    apply_forgetting,
    restore_forgotten,
    verify_forgetting,
    read_certificate,
    check_certificate,
    read_signing_key,
    find_person_named,
    preview_erasure,
    erase_facts,
    list_erasures,
    approve_erasure,
    withdraw_erasure,
    read_erasure_certificate,
)
