"""Forget: choose facts, see what forgetting them would do, forget them, verify it, and get a certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litestar import Response, get, post
from litestar.response import Redirect

from colmlm.api.console.facts import corpus_options, done
from colmlm.api.console.keysets import active_keyset
from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page
from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.schema.schemas import PathId
from colmlm.kb.errors import KBError
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.removal import certificate as certificates
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import DEFAULT_POLICY, LEVELS, OUTCOMES, ForgetPlan, SaidSurvivor
from colmlm.kb.removal.selector import Selector

PREVIEW = 25  # questions that a plan or a verification encodes by default
MOST_PREVIEWED = 200
SHOWN = 50
RUNS = 200
EQUIVALENTS = ("only-list", "include", "exclude")  # the first is the default
POLICIES = (DEFAULT_POLICY, "successor")


@get("/forget", opt=needs(Right.audit), sync_to_thread=True)
def runs(ports: FromPorts, request: PageRequest) -> Page:
    """Show the forget runs, and the form for another."""
    return _runs(ports, request, Form.asked(request))


@post("/forget", opt=needs(Right.edit, Lane.long_reads), sync_to_thread=True)
def plan(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Make a plan. It changes no fact."""
    form = Form(data)
    try:
        made = _plan(ports, request, form)
    except KBError as error:
        return _runs(ports, request, form.refuse(error))
    return Redirect(f"/console/forget/{made.run_id}", status_code=303)


def _plan(ports: Ports, request: PageRequest, form: Form) -> ForgetPlan:
    parts = _parts(form)
    reason = form.text("reason", limit=1000)
    equivalents, policy = form.choice("equivalents", EQUIVALENTS), form.choice("policy", POLICIES)
    radius = form.number("radius", -1, 1)
    sample = form.integer("sample", 1, MOST_PREVIEWED) or PREVIEW
    form.check()
    selector = Selector(**parts, radius=radius if parts["like"] else None)
    return _forgetting(ports, sample).plan(
        selector,
        actor=request.user.name,
        reason=reason,
        equivalents=equivalents,
        radius=radius,
        policy=policy,
    )


def _parts(form: Form) -> dict[str, Any]:
    texts = ("text", "question", "document", "corpus", "uri", "uri_prefix", "licence")
    return {
        **{name: form.optional(name, limit=2000) for name in texts},
        "fact_ids": tuple(form.ids("fact")),
        "first_seq": form.integer("first_seq"),
        "last_seq": form.integer("last_seq"),
        "since": form.moment("since"),
        "until": form.moment("until"),
        "like": form.integer("like"),
        "everything": form.flag("everything"),
    }


def _forgetting(ports: Ports, sample: int = PREVIEW) -> Forgetting:
    """Gives the verbs of forgetting, with the model if the active keyset is of its checkpoint, and with the reader.

    Without the model, stored keys are used in place of encoded questions.
    """
    active = ports.kb.keysets.active()
    encoder = ports.models.encoders().get(active.checkpoint_id)
    largest = ports.kb.settings.plan_max_facts
    return Forgetting(ports.kb, encoder, ports.reader, sample=sample, largest=largest)


@get("/forget/{run_id:int}", opt=needs(Right.audit), sync_to_thread=True)
def run(ports: FromPorts, request: PageRequest, run_id: PathId) -> Page:
    return _show(ports, request, run_id, Form.asked(request))


@get("/forget/{run_id:int}/apply", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_apply(ports: FromPorts, request: PageRequest, run_id: PathId) -> Page:
    return _ask(ports, request, run_id, "apply", Form())


@get("/forget/{run_id:int}/restore", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_restore(ports: FromPorts, request: PageRequest, run_id: PathId) -> Page:
    return _ask(ports, request, run_id, "restore", Form())


@post("/forget/{run_id:int}/apply", opt=needs(Right.edit), sync_to_thread=True)
def apply(ports: FromPorts, request: PageRequest, run_id: PathId, data: Sent) -> Page:
    """Forget the facts of a plan, all in one change or none."""
    return _edit(ports, request, run_id, "apply", Form(data), Forgetting(ports.kb).apply)


@post("/forget/{run_id:int}/restore", opt=needs(Right.edit), sync_to_thread=True)
def restore(ports: FromPorts, request: PageRequest, run_id: PathId, data: Sent) -> Page:
    """Undo an applied run."""
    return _edit(ports, request, run_id, "restore", Form(data), Forgetting(ports.kb).restore)


@post("/forget/{run_id:int}/verify", opt=needs(Right.audit, Lane.long_reads), sync_to_thread=True)
def verify(ports: FromPorts, request: PageRequest, run_id: PathId, data: Sent) -> Page:
    """Verify a run: ask for the forgotten facts, also with the reader's own questions, one per line."""
    form = Form(data)
    try:
        questions = [line.strip() for line in (form.optional("questions") or "").splitlines() if line.strip()]
        sample = form.integer("sample", 1, MOST_PREVIEWED) or PREVIEW
        if len(questions) > MOST_PREVIEWED:
            form.mistakes["questions"] = f"At most {MOST_PREVIEWED} questions are asked at once."
        form.check()
        _forgetting(ports, sample).verify(run_id, questions)
    except KBError as error:
        return _show(ports, request, run_id, form.refuse(error))
    return Redirect(f"/console/forget/{run_id}#verified", status_code=303)


@get("/forget/{run_id:int}/certificate", opt=needs(Right.audit), sync_to_thread=True)
def certificate(ports: FromPorts, run_id: PathId) -> Response[str]:
    """Download the signed certificate, which `colmlm verify-certificate` checks."""
    return Response(
        certificates.issue_forget_certificate(ports.kb, run_id),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="colmlm-forget-{run_id}.json"'},
    )


HANDLERS = (
    runs, plan, run, ask_to_apply, ask_to_restore, apply, restore, verify, certificate,
)  # fmt: skip


def _runs(ports: Ports, request: PageRequest, form: Form) -> Page:
    return form_page(
        request,
        "forget.html",
        form,
        runs=list(reversed(Forgetting(ports.kb).runs(limit=RUNS))),
        corpora=corpus_options(ports),
        ready=active_keyset(ports) is not None,
        preview=PREVIEW,
        most_previewed=MOST_PREVIEWED,
    )


def _show(ports: Ports, request: PageRequest, run_id: int, form: Form) -> Page:
    forgetting = Forgetting(ports.kb)
    record, made, found = forgetting.run(run_id)
    survivors = forgetting.survivors(run_id, limit=SHOWN)
    return form_page(
        request,
        "forget_run.html",
        form,
        run=record,
        plan=made,
        found=found,
        last=found if found and found.read else made,
        survivors=survivors,
        texts=_texts(forgetting, made, survivors),
        drift=forgetting.drift(run_id) if record.state == "planned" else None,
        levels=LEVELS,
        outcomes=OUTCOMES,
        shown=SHOWN,
        done=done(ports, form),
        has_model=ports.encoder is not None,
        preview=PREVIEW,
        most_previewed=MOST_PREVIEWED,
    )


def _texts(
    forgetting: Forgetting, made: ForgetPlan, survivors: Sequence[SaidSurvivor] = ()
) -> dict[int, FactRecord]:
    """Gives the facts whose texts the page shows."""
    shown = [*made.fact_ids[:SHOWN], *made.equivalents[:SHOWN], *made.conflicting[:SHOWN]]
    for successor in made.successors[:SHOWN]:
        shown += [successor.asked_fact_id, successor.successor_id or 0]
    return forgetting.facts([*shown, *(one.asked_fact_id for one in survivors)])


def _ask(ports: Ports, request: PageRequest, run_id: int, verb: str, form: Form) -> Page:
    forgetting = Forgetting(ports.kb)
    record, made, _ = forgetting.run(run_id)
    return form_page(
        request,
        "forget_edit.html",
        form,
        verb=verb,
        run=record,
        plan=made,
        texts=_texts(forgetting, made),
        shown=SHOWN,
    )


def _edit(
    ports: Ports, request: PageRequest, run_id: int, verb: str, form: Form, do: Callable[..., Any]
) -> Page:
    try:
        reason = form.text("reason", limit=1000)
        form.check()
        edit = do(run_id, actor=request.user.name, reason=reason)
    except KBError as error:
        return _ask(ports, request, run_id, verb, form.refuse(error))
    return Redirect(f"/console/forget/{run_id}?change={edit.seq}", status_code=303)
