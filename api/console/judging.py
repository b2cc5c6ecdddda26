"""Judging: says whether an output is right, and leads from a wrong one to the facts behind it, or to adding one."""

from __future__ import annotations

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page
from colmlm.api.middleware.auth import Lane, Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId, shown_to
from colmlm.kb.errors import KBError
from colmlm.kb.evidence.records import NewFeedback
from colmlm.kb.evidence.storing import MOST_CHARACTERS


@post("/audit/outputs/{output_id:int}/right", opt=needs(Right.read, Lane.records), sync_to_thread=True)
def right(ports: FromPorts, request: PageRequest, output_id: PathId) -> Page:
    """Give an output a thumb up, and show it."""
    ports.kb.outputs.give_feedback(output_id, NewFeedback("up"), actor=request.user.name)
    return Redirect(f"/console/audit/outputs/{output_id}", status_code=303)


@get("/audit/outputs/{output_id:int}/wrong", opt=needs(Right.read), sync_to_thread=True)
def ask_what_is_wrong(ports: FromPorts, request: PageRequest, output_id: PathId) -> Page:
    return _show(ports, request, output_id, Form.asked(request))


@post("/audit/outputs/{output_id:int}/wrong", opt=needs(Right.read, Lane.records), sync_to_thread=True)
def wrong(ports: FromPorts, request: PageRequest, output_id: PathId, data: Sent) -> Page:
    """Give an output a thumb down, and show what stands behind it."""
    form = Form(data)
    try:
        made = NewFeedback(
            "down",
            form.optional("comment", limit=MOST_CHARACTERS),
            form.optional("value", limit=MOST_CHARACTERS),
        )
        form.check()
        ports.kb.outputs.give_feedback(output_id, made, actor=request.user.name)
    except KBError as error:
        return _show(ports, request, output_id, form.refuse(error))
    return Redirect(f"/console/audit/outputs/{output_id}/wrong?noted=yes", status_code=303)


def _show(ports: Ports, request: PageRequest, output_id: int, form: Form) -> Page:
    trace = shown_to(request, ports).trace_output(output_id)
    said = [one for one in trace.feedback if one.actor == request.user.name]
    behind = {one.fact_id: one for one in trace.splices if one.fact_id is not None}
    return form_page(
        request,
        "output_wrong.html",
        form,
        trace=trace,
        behind=list(behind.values()),
        proposed=said[-1].value if said else None,
    )


HANDLERS = (right, ask_what_is_wrong, wrong)
