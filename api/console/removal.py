"""Removal: plan, do, verify and undo forget runs, erase facts for good, and hold what must stay.

Erasures and holds need two tokens where the settings say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from litestar import Response, get, post
from litestar.response import Redirect

from colmlm.api.console.operations import active_keyset
from colmlm.api.console.views import (
    Form,
    FromForm,
    Page,
    PageRequest,
    corpus_options,
    find_change,
    form_page,
    on_each,
    page,
    show_again,
    verb_of,
)
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId, editing_in_scope
from colmlm.api.wire import MAX_FACTS_PER_EDIT
from colmlm.kb.errors import KBError
from colmlm.kb.facts.records import FactRecord, Mentioned
from colmlm.kb.principal import as_service
from colmlm.kb.removal.certificate import issue_forget_certificate
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.forget import DISCARDED, Forgetting
from colmlm.kb.removal.holds import Holds
from colmlm.kb.removal.records import (
    DEFAULT_POLICY,
    LEVELS,
    OUTCOMES,
    Erased,
    ErasureReport,
    ForgetPlan,
    Hold,
    SaidSurvivor,
)
from colmlm.kb.removal.scan import ResidueReport, num_bytes_to_scan
from colmlm.kb.removal.selector import Selector

PREVIEW = 25  # questions that a plan or a verification encodes by default
MOST_PREVIEWED = 200
SHOWN = 50
MOST_HOLDS = 500
RUNS_SHOWN = 200
EQUIVALENTS = ("only-list", "include", "exclude")  # the first is the default
POLICIES = (DEFAULT_POLICY, "successor")


def _make_plan(ports: Ports, request: PageRequest, form: Form) -> ForgetPlan:
    parts = _read_selector(form)
    equivalents, policy = form.choice("equivalents", EQUIVALENTS), form.choice("policy", POLICIES)
    radius = form.number("radius", -1, 1)
    sample = form.integer("sample", 1, MOST_PREVIEWED) or PREVIEW
    signature = form.sign(request)
    selector = Selector(**parts, radius=radius if parts["like"] else None)
    return _forget_with_model(ports, sample).plan(
        selector, equivalents=equivalents, radius=radius, policy=policy, **signature
    )


def _read_selector(form: Form) -> dict[str, Any]:
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


def _forget_with_model(ports: Ports, sample: int = PREVIEW) -> Forgetting:
    """Give the verbs of forgetting, with the model if the active keyset is of its checkpoint, and with the reader.

    Without the model, stored keys are used in place of encoded questions.
    """
    with as_service():  # it is of no corpus
        active = ports.kb.keysets.active()
    encoder = ports.models.encoders().get(active.checkpoint_id)
    largest = ports.kb.settings.plan_max_facts
    return Forgetting(ports.kb, encoder, ports.reader, ports.sentences, sample=sample, largest=largest)


def show_runs(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the forget runs, and the form for another."""
    return form_page(
        request,
        "forget.html",
        form,
        runs=list(reversed(Forgetting(ports.kb).runs(limit=RUNS_SHOWN))),
        done=find_change(ports, form),
        corpora=corpus_options(ports),
        ready=active_keyset(ports) is not None,
        preview=PREVIEW,
        most_previewed=MOST_PREVIEWED,
    )


def show_run(ports: FromPorts, request: PageRequest, run_id: PathId, form: FromForm) -> Page:
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
        texts=_find_texts(forgetting, made, survivors),
        drift=forgetting.drift(run_id) if record.state == "planned" else None,
        levels=LEVELS,
        outcomes=OUTCOMES,
        shown=SHOWN,
        done=find_change(ports, form),
        has_model=ports.encoder is not None,
        preview=PREVIEW,
        most_previewed=MOST_PREVIEWED,
    )


def _find_texts(
    forgetting: Forgetting, made: ForgetPlan, survivors: Sequence[SaidSurvivor] = ()
) -> dict[int, FactRecord]:
    """Read the facts whose texts the page of a forget run shows, by id."""
    shown = [*made.fact_ids[:SHOWN], *made.equivalents[:SHOWN], *made.conflicting[:SHOWN]]
    for successor in made.successors[:SHOWN]:
        shown += [successor.asked_fact_id, successor.successor_id or 0]
    return forgetting.facts([*shown, *(one.asked_fact_id for one in survivors)])


def confirm_run(ports: FromPorts, request: PageRequest, run_id: PathId, form: FromForm) -> Page:
    """Ask for confirmation before a run is applied or restored."""
    forgetting = Forgetting(ports.kb)
    record, made, _ = forgetting.run(run_id)
    return form_page(
        request,
        "forget_edit.html",
        form,
        verb=verb_of(request),
        run=record,
        plan=made,
        texts=_find_texts(forgetting, made),
        shown=SHOWN,
    )


@post("/forget", opt=needs(Right.edit, Limiter.long_reads, CorpusLimit.rows), sync_to_thread=True)
@show_again(show_runs)
def plan_forgetting(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Make a plan. It changes no fact."""
    made = _make_plan(ports, request, form)
    return Redirect(f"/console/forget/{made.run_id}", status_code=303)


@post("/forget/{run_id:int}/apply", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
@show_again(confirm_run)
def apply_run(ports: FromPorts, request: PageRequest, run_id: PathId, form: FromForm) -> Page:
    """Forget the facts of a plan, all in one change or none."""
    signature = form.sign(request)
    with editing_in_scope(ports, run_id=run_id):
        edit = Forgetting(ports.kb).apply(run_id, **signature)
    return Redirect(f"/console/forget/{run_id}?change={edit.seq}", status_code=303)


@post("/forget/{run_id:int}/restore", opt=needs(Right.edit, scoped=CorpusLimit.targets), sync_to_thread=True)
@show_again(confirm_run)
def restore_run(ports: FromPorts, request: PageRequest, run_id: PathId, form: FromForm) -> Page:
    """Undo an applied run and show it, or discard a plan and show the list of runs, since its page is gone."""
    signature = form.sign(request)
    with editing_in_scope(ports, run_id=run_id):
        edit = Forgetting(ports.kb).restore(run_id, **signature)
    page = "/console/forget" if edit.kind == DISCARDED else f"/console/forget/{run_id}"
    return Redirect(f"{page}?change={edit.seq}", status_code=303)


@post("/forget/{run_id:int}/verify", opt=needs(Right.audit, Limiter.long_reads), sync_to_thread=True)
@show_again(show_run)
def verify_run(ports: FromPorts, request: PageRequest, run_id: PathId, form: FromForm) -> Page:
    """Verify a run: ask for the forgotten facts, also with the reader's own questions, one per line."""
    questions = [line.strip() for line in (form.optional("questions") or "").splitlines() if line.strip()]
    sample = form.integer("sample", 1, MOST_PREVIEWED) or PREVIEW
    if len(questions) > MOST_PREVIEWED:
        form.mistakes["questions"] = f"At most {MOST_PREVIEWED} questions are asked at once."
    form.check()
    _forget_with_model(ports, sample).verify(run_id, questions)
    return Redirect(f"/console/forget/{run_id}#verified", status_code=303)


@get("/forget/{run_id:int}/certificate", opt=needs(Right.audit), sync_to_thread=True)
def download_certificate(ports: FromPorts, run_id: PathId) -> Response[str]:
    """Download the signed certificate, which `colmlm log verify` checks."""
    return Response(
        issue_forget_certificate(ports.kb, run_id),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="colmlm-forget-{run_id}.json"'},
    )


# Erasures: previews, requests and approvals by a second token, reports, and the search for residue in files.


@dataclass(frozen=True, slots=True)
class ResidueSearch:
    """The results of a search of all files before and after an erasure.

    `num_shared` traces prove nothing, since other texts hold the same bytes.
    """

    before: ResidueReport
    after: ResidueReport
    num_shared: int


def _read_fact_ids(form: Form) -> list[int]:
    ids = form.ids("fact")
    if not ids and "fact" not in form.mistakes:
        form.mistakes["fact"] = "Name at least one fact."
    elif len(ids) > MAX_FACTS_PER_EDIT:
        form.mistakes["fact"] = f"At most {MAX_FACTS_PER_EDIT:,} facts are erased at once."
    return ids


def _search_around(
    ports: Ports, form: Form, fact_ids: Sequence[int], do: Callable[[], ErasureReport]
) -> tuple[ErasureReport, ResidueSearch | None]:
    """Erase by `do`; give its report and, if the form asks for it, the search of all files before and after."""
    if not form.flag("scan"):
        return do(), None
    _require_small_files(ports, form)
    erasure = Erasure(ports.kb)
    traces = erasure.traces(fact_ids)
    before = erasure.residue(traces)
    report = do()
    return report, ResidueSearch(before, erasure.residue(traces), sum(trace.shared for trace in traces))


def _require_small_files(ports: Ports, form: Form) -> None:
    """Raise `Mistakes` if the files are too large to be searched within a request."""
    size = num_bytes_to_scan(engine=ports.kb.engine, settings=ports.kb.settings)
    if size > (most := ports.tuning.most_scanned):
        form.mistakes["scan"] = (
            f"There are {size / 1e9:.1f} GB to read, and at most {most / 1e9:.1f} GB are read here. "
            "Leave it out, or run at the server: colmlm erase --scan"
        )
    form.check()


def show_erasures(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the requests that wait for a second token, those that were decided, and the latest erasures."""
    done = ports.kb.log.changes_before(ports.kb.log.head_seq() + 1, SHOWN, kind="erase")
    asked = sorted(
        ErasureRequests(ports.kb).requests(),
        key=lambda one: (one.state != "waiting", -one.erasure_request_id),
    )
    return form_page(
        request,
        "erasures.html",
        form,
        requests=asked[:SHOWN],
        done=done,
        needs_two=ports.kb.settings.erase_needs_two,
        shown=SHOWN,
    )


def confirm_erasure(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Give the page that asks for confirmation, or the overview where no fact was named that can be erased."""
    try:
        ids = _read_fact_ids(form)
        if "fact" in form.mistakes:
            form.check()
        preview = Erasure(ports.kb).preview(ids)
    except KBError as error:
        return show_erasures(ports, request, form.refuse(form.error or error))
    return form_page(
        request,
        "erasure_new.html",
        form,
        needs_two=ports.kb.settings.erase_needs_two,
        **_describe_preview(ports, preview),
    )


def show_erasure(ports: FromPorts, request: PageRequest, request_id: PathId, form: FromForm) -> Page:
    """Show a request for erasure, for another token to decide."""
    asked = ErasureRequests(ports.kb).read(request_id)
    told: dict[str, Any] = {"preview": None}
    if asked.state == "waiting":
        try:
            told = _describe_preview(ports, Erasure(ports.kb).preview(asked.fact_ids))
        except KBError as error:  # a fact was erased since the request
            form.refuse(form.error or error)
    return form_page(request, "erasure.html", form, asked=asked, **told)


def _describe_preview(ports: Ports, preview: Erased) -> dict[str, Any]:
    """Collect a preview, the facts to be erased, and the other facts that say the same, for a page."""
    facts: list[FactRecord] = [ports.kb.facts.show(fact_id) for fact_id in preview.fact_ids[:SHOWN]]
    twins = [ports.kb.facts.show(fact_id) for fact_id in preview.also_said_by[:SHOWN]]
    return {"preview": preview, "facts": facts, "twins": twins}


@post("/erasures", opt=needs(Right.admin), sync_to_thread=True)
@show_again(confirm_erasure)
def erase_facts(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Erase facts for good, all or none; where two tokens are required, make a request."""
    ids, signature = _read_fact_ids(form), form.sign(request)
    mentions: Mentioned = "all" if form.flag("everywhere") else "same-document"
    if ports.kb.settings.erase_needs_two:
        asked = ErasureRequests(ports.kb).ask(ids, token=request.user, mentions=mentions, **signature)
        return Redirect(f"/console/erasures/{asked.erasure_request_id}", status_code=303)
    report, searched = _search_around(
        ports,
        form,
        ids,
        lambda: Erasure(ports.kb).erase(ids, mentions=mentions, **signature),
    )
    return page(request, "erasure_report.html", report=report, searched=searched)


@post("/erasures/{request_id:int}/approve", opt=needs(Right.admin), sync_to_thread=True)
@show_again(show_erasure)
def approve_erasure(ports: FromPorts, request: PageRequest, request_id: PathId, form: FromForm) -> Page:
    """Approve a request of another token and erase its facts."""
    requests = ErasureRequests(ports.kb)
    ids = requests.read(request_id).fact_ids
    report, searched = _search_around(
        ports, form, ids, lambda: requests.approve(request_id, token=request.user)[1]
    )
    return page(request, "erasure_report.html", report=report, searched=searched)


@post("/erasures/{request_id:int}/withdraw", opt=needs(Right.admin), sync_to_thread=True)
@show_again(show_erasure)
def withdraw_erasure(ports: FromPorts, request: PageRequest, request_id: PathId, form: FromForm) -> Page:
    """Withdraw a request; nothing is erased."""
    ErasureRequests(ports.kb).withdraw(request_id, token=request.user)
    return Redirect(f"/console/erasures/{request_id}", status_code=303)


# Holds: what is kept from being erased or deleted by a rule, placed and released.


def show_holds(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the holds, the newest first, and a form for another."""
    found = Holds(ports.kb).all(limit=MOST_HOLDS)
    shown = sorted(found, key=lambda hold: (hold.state in ("released", "withdrawn"), -hold.hold_id))
    return form_page(request, "holds.html", form, holds=shown, needs_two=ports.kb.settings.hold_needs_two)


def show_hold(ports: FromPorts, request: PageRequest, hold_id: PathId, form: FromForm) -> Page:
    """Show the holds, with the error, after a form about this hold was refused."""
    return show_holds(ports, request, form)


@post("/holds", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_holds)
def place_hold(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Place a hold; where two tokens are required, ask for it."""
    corpus, signature = form.optional("corpus"), form.sign(request)
    hold = Holds(ports.kb).place(
        token=request.user,
        fact_ids=form.ids("fact"),
        document_ids=form.ids("document"),
        corpora=[corpus] if corpus else [],
        **signature,
    )
    return _lead_to_hold(hold)


@post("/holds/{hold_id:int}/release", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_hold)
def release_hold(ports: FromPorts, request: PageRequest, hold_id: PathId, form: FromForm) -> Page:
    """Release a hold; where two tokens are required, ask for that or approve it."""
    return _lead_to_hold(Holds(ports.kb).release(hold_id, token=request.user, **form.sign(request)))


@post("/holds/{hold_id:int}/approve", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_hold)
def approve_hold(ports: FromPorts, request: PageRequest, hold_id: PathId, form: FromForm) -> Page:
    """Approve a hold of another token."""
    return _lead_to_hold(Holds(ports.kb).approve(hold_id, token=request.user))


@post("/holds/{hold_id:int}/withdraw", opt=needs(Right.edit), sync_to_thread=True)
@show_again(show_hold)
def withdraw_from_hold(ports: FromPorts, request: PageRequest, hold_id: PathId, form: FromForm) -> Page:
    """Withdraw what waits for a second token."""
    return _lead_to_hold(Holds(ports.kb).withdraw(hold_id, token=request.user))


def _lead_to_hold(hold: Hold) -> Redirect:
    return Redirect(f"/console/holds#hold-{hold.hold_id}", status_code=303)


HANDLERS = (
    get("/holds", opt=needs(Right.audit), sync_to_thread=True)(show_holds),
    place_hold,
    release_hold,
    approve_hold,
    withdraw_from_hold,
    get("/forget", opt=needs(Right.audit, scoped=CorpusLimit.rows), sync_to_thread=True)(show_runs),
    plan_forgetting,
    get("/forget/{run_id:int}", opt=needs(Right.audit, scoped=CorpusLimit.rows), sync_to_thread=True)(
        show_run
    ),
    *on_each(
        get,
        "/forget/{run_id:int}/apply",
        "/forget/{run_id:int}/restore",
        right=Right.edit,
        scoped=CorpusLimit.rows,
    )(confirm_run),
    apply_run,
    restore_run,
    verify_run,
    download_certificate,
    get("/erasures", opt=needs(Right.admin), sync_to_thread=True)(show_erasures),
    get("/erasures/new", opt=needs(Right.admin), sync_to_thread=True)(confirm_erasure),
    erase_facts,
    get("/erasures/{request_id:int}", opt=needs(Right.admin), sync_to_thread=True)(show_erasure),
    approve_erasure,
    withdraw_erasure,
)
