"""Contradictions: facts that answer one question with two values, say the same, or are stale, and how to end that."""

from __future__ import annotations

from typing import Any

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.facts import corpus_options, done
from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page
from colmlm.api.middleware.auth import Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import shown_to
from colmlm.kb.errors import InvalidValue, KBError
from colmlm.kb.facts.compared import PairPage, StalePage
from colmlm.kb.jobs.kinds import Compare
from colmlm.kb.jobs.queue import Jobs

ON_A_PAGE = 20
LISTS = ("contradictions", "duplicates", "stale", "held")


@get("/contradictions", opt=needs(Right.read), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    return _show(ports, request, Form.asked(request))


@post("/contradictions/hold", opt=needs(Right.edit), sync_to_thread=True)
def hold(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Note that both of two facts hold, or with `not` that they do not."""
    form = Form(data)
    try:
        ids, reason = form.ids("fact"), form.text("reason", limit=1000)
        form.check()
        if len(ids) != 2:
            raise InvalidValue("pair", "it takes two facts")
        edit = ports.kb.comparisons.hold(
            *ids, actor=request.user.name, reason=reason, holds=not form.flag("not")
        )
    except KBError as error:
        return _show(ports, request, form.refuse(error))
    return Redirect(f"/console/contradictions?change={edit.seq}", status_code=303)


@post("/contradictions/compare", opt=needs(Right.edit), sync_to_thread=True)
def compare(ports: FromPorts, request: PageRequest) -> Page:
    """Queue a comparison of all facts."""
    job = Jobs(ports.kb).submit(Compare(), actor=request.user.name)
    return Redirect(f"/console/jobs/{job.job_id}", status_code=303)


def _show(ports: Ports, request: PageRequest, form: Form) -> Page:
    shown = form.raw("list") if form.raw("list") in LISTS else LISTS[0]
    found: PairPage | StalePage | None = None
    try:
        found = _found(ports, request, form, shown)
    except KBError as error:
        form.refuse(error)
    return form_page(
        request,
        "contradictions.html",
        form,
        found=found,
        shown=shown,
        lists=LISTS,
        corpora=corpus_options(ports),
        done=done(ports, form),
    )


def _found(ports: Ports, request: PageRequest, form: Form, shown: str) -> PairPage | StalePage:
    part: dict[str, Any] = {
        "corpus": form.optional("corpus"),
        "after": form.integer("after", low=0) or 0,
        "limit": ON_A_PAGE,
    }
    form.check()
    view = shown_to(request, ports)
    if shown == "stale":
        return view.stale(**part)
    if shown == "duplicates":
        return view.pairs("duplicates", **part)
    return view.pairs("contradictions", held=shown == "held", **part)


HANDLERS = (overview, hold, compare)
