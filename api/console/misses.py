"""Misses: what was asked and found nothing, or was called wrong, as a work list, and what to do about each group."""

from __future__ import annotations

from typing import cast

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.facts import done
from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page, to_group
from colmlm.api.middleware.auth import Lane, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId, shown_to
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT
from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.answers.records import Answer
from colmlm.kb.errors import KBError
from colmlm.kb.misses.records import MissGroup, MissOrder, MissState

ON_A_PAGE = 20
STATES: tuple[MissState, ...] = ("open", "dismissed", "solved")
ORDERS: tuple[MissOrder, ...] = ("asked", "newest")


@get("/misses", opt=needs(Right.read), sync_to_thread=True)
def find(ports: FromPorts, request: PageRequest) -> Page:
    """Show a page of the groups."""
    form = Form.asked(request)
    found = None
    state, order = form.choice("state", STATES), form.choice("sort", ORDERS)
    try:
        after = form.integer("after", low=0) or 0
        form.check()
        found = (
            shown_to(request, ports)
            .misses()
            .find(state=cast(MissState, state), order=cast(MissOrder, order), after=after, limit=ON_A_PAGE)
        )
    except KBError as error:
        form.refuse(error)
    return form_page(
        request, "misses.html", form, found=found, state=state, order=order, done=done(ports, form)
    )


@get("/misses/{group_id:int}", opt=needs(Right.read, Lane.reading), sync_to_thread=True)
def read(ports: FromPorts, request: PageRequest, group_id: PathId) -> Page:
    return _show(ports, request, group_id, Form.asked(request))


@post("/misses/{group_id:int}/solve", opt=needs(Right.edit, Lane.reading), sync_to_thread=True)
def solve(ports: FromPorts, request: PageRequest, group_id: PathId, data: Sent) -> Page:
    """Solve a group by a fact that is there, if its questions find it."""
    form = Form(data)
    try:
        fact_id, reason = form.integer("fact"), form.text("reason", limit=1000)
        if fact_id is None:
            form.mistakes.setdefault("fact", "Give a fact's id, such as 12.")
        form.check()
        assert fact_id is not None
        return to_group(ports, request, group_id, fact_id, reason, anyway=form.flag("anyway"))
    except KBError as error:
        return _show(ports, request, group_id, form.refuse(error))


@get("/misses/dismiss", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_dismiss(ports: FromPorts, request: PageRequest) -> Page:
    return _ask(ports, request, Form.asked(request), "dismiss")


@get("/misses/reopen", opt=needs(Right.edit), sync_to_thread=True)
def ask_to_reopen(ports: FromPorts, request: PageRequest) -> Page:
    return _ask(ports, request, Form.asked(request), "reopen")


@post("/misses/dismiss", opt=needs(Right.edit), sync_to_thread=True)
def dismiss(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    return _decide(ports, request, Form(data), "dismiss")


@post("/misses/reopen", opt=needs(Right.edit), sync_to_thread=True)
def reopen(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    return _decide(ports, request, Form(data), "reopen")


def _decide(ports: Ports, request: PageRequest, form: Form, verb: str) -> Page:
    try:
        ids, reason = form.ids("group"), form.text("reason", limit=1000)
        if not ids:
            form.mistakes["group"] = "Choose at least one group."
        form.check()
        misses = ports.kb.misses
        decide = misses.dismiss if verb == "dismiss" else misses.reopen
        seq = decide(ids, actor=request.user.name, reason=reason)
    except KBError as error:
        return _ask(ports, request, form.refuse(error), verb)
    return Redirect(f"/console/misses?change={seq}", status_code=303)


def _ask(ports: Ports, request: PageRequest, form: Form, verb: str) -> Page:
    """Asks for the reason, and shows which groups are concerned."""
    misses = shown_to(request, ports).misses()
    groups = [misses.read(group_id).group for group_id in form.ids("group")[:MAX_FACTS_PER_EDIT]]
    return form_page(request, "misses_decide.html", form, verb=verb, groups=groups)


def _show(ports: Ports, request: PageRequest, group_id: int, form: Form) -> Page:
    details = shown_to(request, ports).misses().read(group_id)
    return form_page(
        request,
        "miss.html",
        form,
        group=details.group,
        questions=details.questions,
        fact_id=form.integer("fact"),
        left=form.ids("left"),
        done=done(ports, form),
        asked=_asked_now(ports, details.group) if details.group.state == "open" else None,
    )


def _asked_now(ports: Ports, group: MissGroup) -> Answer | None:
    """Ask the question of a group once more, without storing what is said; None where no reader is loaded."""
    if ports.answers is None or not group.question.strip() or len(group.question) > MAX_QUESTION:
        return None
    try:
        return ports.answers.answering.ask(group.question, nearest=1)
    except KBError:
        return None


HANDLERS = (find, read, solve, ask_to_dismiss, ask_to_reopen, dismiss, reopen)
