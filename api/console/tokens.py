"""Tokens: their roles, when they expire, and when they were last used. A secret is shown once."""

from __future__ import annotations

from datetime import timedelta

from litestar import get, post
from litestar.response import Redirect

from colmlm.api.console.views import Form, Page, PageRequest, Sent, form_page, page
from colmlm.api.middleware.auth import Right, needs
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId
from colmlm.kb.access.records import LONGEST, MAX_RATE, ROLES
from colmlm.kb.errors import KBError

ON_A_PAGE = 200
MAY = {
    "decoder": "look up, and store what a decoder said",
    "reader": "look up, read, ask",
    "operator": "read, edit, forget, audit",
    "auditor": "read, and audit",
    "trainer": "read, key and switch keysets, export",
    "admin": "everything, with tokens, erasures and backups",
}
HOURS = (
    ("0", "ends at once"),
    ("1", "works for another hour"),
    ("24", "works for another day"),
    ("168", "works for another week"),
)


@get("/tokens", opt=needs(Right.admin), sync_to_thread=True)
def overview(ports: FromPorts, request: PageRequest) -> Page:
    """Show every token, also expired and revoked ones, and the form for another."""
    return _overview(ports, request, Form.asked(request))


@post("/tokens", opt=needs(Right.admin), sync_to_thread=True)
def create(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Create a token, and show its secret once."""
    form = Form(data)
    try:
        name, role = form.text("name", limit=100), form.choice("role", list(ROLES))
        days, rate = form.integer("days", 1, LONGEST.days), form.integer("rate", 1, MAX_RATE)
        form.check()
        secret, made = ports.kb.access.create(name, role, expires_in=_days(days), rate_limit=rate)
    except KBError as error:
        return _overview(ports, request, form.refuse(error))
    return page(request, "token_secret.html", token=made, secret=secret, verb="made")


@get("/tokens/{token_id:int}/rotate", opt=needs(Right.admin), sync_to_thread=True)
def ask_to_rotate(ports: FromPorts, request: PageRequest, token_id: PathId) -> Page:
    """Ask how long the old secret works, before a token gets another."""
    return _ask(ports, request, "rotate", token_id, Form())


@post("/tokens/{token_id:int}/rotate", opt=needs(Right.admin), sync_to_thread=True)
def rotate(ports: FromPorts, request: PageRequest, token_id: PathId, data: Sent) -> Page:
    """Give a token another secret, and show it once."""
    form = Form(data)
    try:
        hours = form.choice("grace", [value for value, _ in HOURS])
        days = form.integer("days", 1, LONGEST.days)
        form.check()
        name, grace = ports.kb.access.name_of(token_id), timedelta(hours=int(hours))
        secret, rotated = ports.kb.access.rotate(name, grace=grace, expires_in=_days(days))
    except KBError as error:
        return _ask(ports, request, "rotate", token_id, form.refuse(error))
    return page(request, "token_secret.html", token=rotated, secret=secret, verb="rotated")


@get("/tokens/{token_id:int}/revoke", opt=needs(Right.admin), sync_to_thread=True)
def ask_to_revoke(ports: FromPorts, request: PageRequest, token_id: PathId) -> Page:
    """Ask for confirmation before a token is revoked: show whose it is, and when it was last used."""
    return _ask(ports, request, "revoke", token_id, Form())


@post("/tokens/{token_id:int}/revoke", opt=needs(Right.admin), sync_to_thread=True)
def revoke(ports: FromPorts, request: PageRequest, token_id: PathId, data: Sent) -> Page:
    """Revoke a token, with every secret of it, in every process."""
    try:
        ports.kb.access.revoke(ports.kb.access.name_of(token_id))
    except KBError as error:
        return _ask(ports, request, "revoke", token_id, Form(data).refuse(error))
    return Redirect(f"/console/tokens?revoked={token_id}", status_code=303)


HANDLERS = (overview, create, ask_to_rotate, rotate, ask_to_revoke, revoke)


def _days(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _overview(ports: Ports, request: PageRequest, form: Form) -> Page:
    after, revoked = form.integer("after", low=0) or 0, form.integer("revoked")
    access = ports.kb.access
    found = access.all(after=after, limit=ON_A_PAGE + 1)
    ended = access.show(access.name_of(revoked)) if revoked else None
    return form_page(
        request,
        "tokens.html",
        form,
        tokens=found[:ON_A_PAGE],
        more=found[ON_A_PAGE - 1].key_id if len(found) > ON_A_PAGE else None,
        ended=ended if ended and ended.revoked_at else None,
        roles=[(role, f"{role}: {MAY[role]}") for role in ROLES],
        most_days=LONGEST.days,
        most_rate=MAX_RATE,
        limit=ports.settings.rate_limit,
    )


def _ask(ports: Ports, request: PageRequest, verb: str, token_id: int, form: Form) -> Page:
    token = ports.kb.access.show(ports.kb.access.name_of(token_id))
    return form_page(
        request,
        "token_edit.html",
        form,
        verb=verb,
        token=token,
        hours=HOURS,
        most_days=LONGEST.days,
        is_own=token.key_id == request.user.key_id,
    )
