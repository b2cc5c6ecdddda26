"""Erasures: previews, requests and approvals by a second token, reports, and the search for residue in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page, page
from colmlm.api.door.auth import Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.schema.schemas import PathId
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT
from colmlm.kb.errors import KBError
from colmlm.kb.facts.records import FactRecord, Mentioned
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.removal.records import Erased, ErasureReport
from colmlm.kb.removal.scan import ResidueReport, num_bytes_to_scan

SHOWN = 50


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search of all files found before and after an erasure.

    `num_shared` traces prove nothing, since other texts hold the same bytes.
    """

    before: ResidueReport
    after: ResidueReport
    num_shared: int


@get("/erasures", opt=needs(Right.admin), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    """Show the requests that wait for a second token, those that were decided, and the latest erasures."""
    return _overview(ports, request, Form())


@get("/erasures/new", opt=needs(Right.admin), sync_to_thread=True)
def ask_to_erase(ports: FromPorts, request: PageRequest) -> Page:
    """Ask for confirmation before facts are erased: show which, how many, and what else the erasure touches."""
    return _ask(ports, request, Form.asked(request))


@post("/erasures", opt=needs(Right.admin), sync_to_thread=True)
def erase(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Erase facts for good, all or none; where two tokens are required, make a request."""
    form, actor = Form(data), request.user.name
    try:
        ids, reason = _chosen(form), form.text("reason", limit=1000)
        form.check()
        mentions: Mentioned = "all" if form.flag("everywhere") else "same-document"
        if ports.kb.settings.erase_needs_two:
            asked = ErasureRequests(ports.kb).ask(
                ids, token=request.user, actor=actor, reason=reason, mentions=mentions
            )
            return Redirect(f"/console/erasures/{asked.erasure_request_id}", status_code=303)
        report, searched = _searching(
            ports,
            form,
            ids,
            lambda: Erasure(ports.kb).erase(ids, actor=actor, reason=reason, mentions=mentions),
        )
    except KBError as error:
        return _ask(ports, request, form.refuse(error))
    return page(request, "erasure_report.html", report=report, searched=searched)


@get("/erasures/{request_id:int}", opt=needs(Right.admin), sync_to_thread=True)
def read(ports: FromPorts, request: PageRequest, request_id: PathId) -> Page:
    """Show a request for erasure, for another token to decide."""
    return _show(ports, request, request_id, Form())


@post("/erasures/{request_id:int}/approve", opt=needs(Right.admin), sync_to_thread=True)
def approve(ports: FromPorts, request: PageRequest, request_id: PathId, data: Sent) -> Page:
    """Approve a request of another token and erase its facts."""
    form, requests = Form(data), ErasureRequests(ports.kb)
    try:
        ids = requests.read(request_id).fact_ids
        report, searched = _searching(
            ports, form, ids, lambda: requests.approve(request_id, token=request.user)[1]
        )
    except KBError as error:
        return _show(ports, request, request_id, form.refuse(error))
    return page(request, "erasure_report.html", report=report, searched=searched)


@post("/erasures/{request_id:int}/withdraw", opt=needs(Right.admin), sync_to_thread=True)
def withdraw(ports: FromPorts, request: PageRequest, request_id: PathId, data: Sent) -> Page:
    """Withdraw a request; nothing is erased."""
    try:
        ErasureRequests(ports.kb).withdraw(request_id, token=request.user)
    except KBError as error:
        return _show(ports, request, request_id, Form(data).refuse(error))
    return Redirect(f"/console/erasures/{request_id}", status_code=303)


HANDLERS = (overview, ask_to_erase, erase, read, approve, withdraw)


def _chosen(form: Form) -> list[int]:
    ids = form.ids("fact")
    if not ids and "fact" not in form.mistakes:
        form.mistakes["fact"] = "Name at least one fact."
    elif len(ids) > MAX_FACTS_PER_EDIT:
        form.mistakes["fact"] = f"At most {MAX_FACTS_PER_EDIT:,} facts are erased at once."
    return ids


def _searching(
    ports: Ports, form: Form, fact_ids: Sequence[int], do: Callable[[], ErasureReport]
) -> tuple[ErasureReport, Searched | None]:
    """Runs `do` and gives its report and, if the form asks for it, what a search of files found before and after."""
    if not form.flag("scan"):
        return do(), None
    _require_little(ports, form)
    erasure = Erasure(ports.kb)
    traces = erasure.traces(fact_ids)
    before = erasure.residue(traces)
    report = do()
    return report, Searched(before, erasure.residue(traces), sum(trace.shared for trace in traces))


def _require_little(ports: Ports, form: Form) -> None:
    """Refuses the search where the files are too large to be read within a request."""
    size = num_bytes_to_scan(engine=ports.kb.engine, settings=ports.kb.settings)
    if size > (most := ports.tuning.most_scanned):
        form.mistakes["scan"] = (
            f"There are {size / 1e9:.1f} GB to read, and at most {most / 1e9:.1f} GB are read here. "
            "Leave it out, or run at the server: colmlm erase --scan"
        )
    form.check()


def _overview(ports: Ports, request: PageRequest, form: Form) -> Page:
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


def _ask(ports: Ports, request: PageRequest, form: Form) -> Page:
    """Gives the page that asks for confirmation, or the overview where no fact was named that can be erased."""
    try:
        ids = _chosen(form)
        if "fact" in form.mistakes:
            form.check()
        preview = Erasure(ports.kb).preview(ids)
    except KBError as error:
        return _overview(ports, request, form.refuse(form.error or error))
    return form_page(
        request,
        "erasure_new.html",
        form,
        needs_two=ports.kb.settings.erase_needs_two,
        **_told(ports, preview),
    )


def _show(ports: Ports, request: PageRequest, request_id: int, form: Form) -> Page:
    asked = ErasureRequests(ports.kb).read(request_id)
    told: dict[str, Any] = {"preview": None}
    if asked.state == "waiting":
        try:
            told = _told(ports, Erasure(ports.kb).preview(asked.fact_ids))
        except KBError as error:  # a fact was erased since the request
            form.refuse(form.error or error)
    return form_page(request, "erasure.html", form, asked=asked, **told)


def _told(ports: Ports, preview: Erased) -> dict[str, Any]:
    """Collects what a page shows of facts before they are erased."""
    facts: list[FactRecord] = [ports.kb.facts.show(fact_id) for fact_id in preview.fact_ids[:SHOWN]]
    twins = [ports.kb.facts.show(fact_id) for fact_id in preview.also_said_by[:SHOWN]]
    return {"preview": preview, "facts": facts, "twins": twins}
