"""Solving: asks a group of misses again once a fact was added for it, and leads back to its page."""

from __future__ import annotations

from litestar.response import Redirect

from colmlm.api.console.forms import Form
from colmlm.api.console.views import PageRequest
from colmlm.api.ports import Ports
from colmlm.api.routes.misses import asks_of
from colmlm.kb.errors import KBError
from colmlm.kb.facts.records import Edit


def to_group(
    ports: Ports, request: PageRequest, group_id: int, fact_id: int, reason: str, *, anyway: bool = False
) -> Redirect:
    """Solves the group by the fact, if its questions find it, and redirects to its page, which says which do not."""
    misses = ports.kb.shown(past=True).misses(asks_of(ports))
    asked = misses.solve(group_id, fact_id, anyway=anyway, actor=request.user.name, reason=reason)
    left = ",".join(str(one.generation_id) for one in asked.asked if not one.found)
    return Redirect(f"/console/misses/{group_id}?fact={fact_id}&left={left}", status_code=303)


def solved_by(ports: Ports, request: PageRequest, form: Form, edit: Edit) -> Redirect | None:
    """Leads from a fact that was added for a group, which the form names, to that group; None where it names none.

    The fact stays, also where the group cannot be asked again.
    """
    if (group_id := form.integer("miss")) is None:
        return None
    (fact_id,) = edit.fact_ids
    try:
        led = to_group(ports, request, group_id, fact_id, form.raw("reason"))
    except KBError:
        return Redirect(f"/console/facts/{fact_id}?change={edit.seq}", status_code=303)
    return Redirect(f"{led.url}&change={edit.seq}", status_code=303)
