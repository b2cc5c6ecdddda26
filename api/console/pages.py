"""The routes of the console, which all answer in HTML, with sign-in, tokens, the theme, and the static files."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from litestar import Request, Response, Router, get, post
from litestar.concurrency import sync_to_thread
from litestar.datastructures import Cookie
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, PathParameter
from litestar.response import Redirect
from litestar.response.base import ASGIResponse

from colmlm.api.console import facts, operations, outputs, questions, removal, review
from colmlm.api.console.views import (
    HEADERS,
    HERE,
    PLACES,
    THEME_COOKIE,
    THEMES,
    Form,
    FromForm,
    Page,
    PageRequest,
    corpus_options,
    form_page,
    on_each,
    page,
    render,
    show_again,
    show_problem,
    theme_of,
    verb_of,
)
from colmlm.api.errors import identity_refused, logout_refused, not_signed_in, problem_of
from colmlm.api.middleware.auth import (
    COOKIE,
    SIGN_IN_PATH,
    STATIC_PATH,
    CorpusLimit,
    Limiter,
    Right,
    check_origin,
    cookie_of,
    needs,
    session_of,
)
from colmlm.api.middleware.sign_on import LOGOUT_PATH, RETURN_PATH, SIGN_ON_PATH, SignOn, SignOnAttempt
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import PathId
from colmlm.api.settings import SignOnSettings
from colmlm.kb.access.records import LONGEST, MAX_RATE, ROLES
from colmlm.kb.errors import KBError

if TYPE_CHECKING:
    from litestar.types import HTTPScope

_TYPES = {"style.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
_WRONG_SECRET = (
    "This secret does not work. It may be misspelt, expired or revoked. Copy it again, or ask for a new one."
)
SIGN_ON_COOKIE = "colmlm_sign_on"
SIGN_ON_SECONDS = 600  # for which a browser may be at the provider
_YEAR = 365 * 24 * 3600
MOST_BYTES = 16 * 1024  # of a sign-in, which needs no token: the form's secret, and a page to return to


@get(
    ["/", "/console"],
    opt=needs(Right.lookup, scoped=CorpusLimit.filter),
    include_in_schema=False,
    sync_to_thread=False,
)
def home(request: PageRequest) -> Redirect:
    """Redirect to the first page that the token's role may see."""
    first = next((place.href for place in PLACES if place.is_for(request.user)), PLACES[0].href)
    return Redirect(first, status_code=303)


@get(
    f"{STATIC_PATH}{{name:str}}",
    opt=needs(Right.lookup, Limiter.auth),
    include_in_schema=False,
    sync_to_thread=True,
)
def send_static(name: Annotated[str, PathParameter()]) -> Response[str]:
    """Send the script, the style or the icon, by a listed name. They need no token, as the sign-in form uses them."""
    if name not in _TYPES:
        raise NotFoundException
    return Response(_read_static(name), media_type=_TYPES[name])


@post(SIGN_IN_PATH, opt={"limiter": Limiter.auth}, include_in_schema=False, request_max_body_size=MOST_BYTES)
async def sign_in(request: Request[None, Any, Any], ports: FromPorts) -> Response[Any]:
    """Check the form's secret and begin a session. Scripts cannot read its cookie, which tells nothing of the token."""
    form = await request.form()
    secret, back = str(form.get("key", "")).strip(), str(form.get("back", ""))
    access = ports.auth_kb.access
    token = await sync_to_thread(access.of_secret, secret) if secret else None
    if token is None:
        problem_of(not_signed_in())  # sets the request's refusal, which the journal logs
        body = _render_sign_in(back, theme_of(request.cookies), _WRONG_SECRET, ports.settings.sign_on)
        return Response(body, status_code=401, media_type="text/html", headers=_REFUSED)
    check_origin(request.headers)  # otherwise another site could sign this browser in with its own token
    session = await sync_to_thread(access.begin_session, token, session_of(request.headers))
    return Redirect(_local_path(back), status_code=303, cookies=[_session_cookie(request, session)])


@post(
    "/console/sign-out",
    opt=needs(Right.lookup, Limiter.sign_on, scoped=CorpusLimit.filter),
    include_in_schema=False,
    sync_to_thread=True,
)
def sign_out(ports: FromPorts, request: PageRequest) -> Response[Any]:
    """End the session for everybody who has its cookie. The token itself still works until it is revoked.

    A person who signed on at the identity provider is led there, to sign out of it as well.
    """
    if (secret := session_of(request.headers)) is not None:
        ports.auth_kb.access.end_session(secret)
    gone = Cookie(COOKIE, value="", max_age=0, httponly=True, samesite="strict")
    address = None
    if ports.sign_on is not None and request.user.groups is not None:
        address = ports.sign_on.sign_out_address(_own_address(request))
    return Redirect("/", status_code=303, cookies=[gone]) if address is None else _move_on(address, [gone])


# With single sign-on these three are open; without it they are as closed as any other.
_OF_SIGN_ON = needs(Right.lookup, Limiter.sign_on, scoped=CorpusLimit.filter)


@get(SIGN_ON_PATH, opt=_OF_SIGN_ON, include_in_schema=False, sync_to_thread=True)
def begin_sign_on(request: Request[None, Any, Any], ports: FromPorts) -> Response[Any]:
    """Lead the browser to the identity provider, with a cookie by which its return is known."""
    back = _local_path(request.query_params.get("back", ""))
    try:
        address, attempt = _need_sign_on(ports).begin(_own_address(request), back)
    except KBError as error:
        return _refuse_sign_on(request, ports, error)
    return Redirect(
        address, status_code=303, cookies=[_attempt_cookie(request, attempt.to_cookie(), SIGN_ON_SECONDS)]
    )


@get(RETURN_PATH, opt=_OF_SIGN_ON, include_in_schema=False, sync_to_thread=True)
def finish_sign_on(request: Request[None, Any, Any], ports: FromPorts) -> Response[Any]:
    """Begin a session for the person whom the identity provider sends back, if this browser began the sign-on."""
    try:
        sign_on = _need_sign_on(ports)
        attempt = SignOnAttempt.from_cookie(cookie_of(request.headers, SIGN_ON_COOKIE) or "")
        if attempt is None:
            raise identity_refused("this browser did not begin this sign-on")
        said = {name: str(value) for name, value in request.query_params.items()}
        session = sign_on.finish(_own_address(request), attempt, said, session_of(request.headers))
    except KBError as error:
        return _refuse_sign_on(request, ports, error)
    cookies = [_session_cookie(request, session), _attempt_cookie(request, "", 0)]
    # A redirect would count as sent from the provider's site, and the cookie of the session would not be sent with it.
    return _move_on(_local_path(attempt.back), cookies)


@post(
    LOGOUT_PATH,
    opt=_OF_SIGN_ON,
    include_in_schema=False,
    request_max_body_size=MOST_BYTES,
    status_code=200,
    sync_to_thread=True,
)
def end_provider_sessions(ports: FromPorts, form: FromForm) -> None:
    """End the sessions that a logout token of the identity provider names, as the provider itself sends it."""
    sign_on, tokens = _need_sign_on(ports), form.all_values("logout_token")
    if len(tokens) != 1:
        raise logout_refused("the form has not one logout_token")
    sign_on.end_sessions(tokens[0])


def _need_sign_on(ports: Ports) -> SignOn:
    if ports.sign_on is None or ports.sign_on.settings.client_id is None:
        raise NotFoundException
    return ports.sign_on


def _own_address(request: Request[Any, Any, Any]) -> str:
    """Give this server's address as the browser knows it. The gate has checked the name."""
    ports: Ports = request.scope["state"]["ports"]
    if (named := ports.settings.sign_on.console_url) is not None:
        return named.rstrip("/")
    return f"{request.url.scheme}://{request.headers['host']}"


def _move_on(address: str, cookies: list[Cookie]) -> Response[Any]:
    """Answer with a page that redirects at once, also to an address to which the page before lets no form redirect."""
    headers = {**HEADERS, "Referrer-Policy": "no-referrer"}  # the address of this page may hold a code
    body = render("moving_on.html", address=address)
    return Response(body, status_code=200, media_type="text/html", headers=headers, cookies=cookies)


def _refuse_sign_on(request: Request[Any, Any, Any], ports: Ports, error: KBError) -> Response[Any]:
    problem, headers = problem_of(error)
    body = _render_sign_in("", theme_of(request.cookies), problem.detail, ports.settings.sign_on)
    return Response(
        body,
        status_code=problem.status,
        media_type="text/html",
        headers={**HEADERS, **headers},
        cookies=[_attempt_cookie(request, "", 0)],
    )


def _attempt_cookie(request: Request[Any, Any, Any], value: str, seconds: int) -> Cookie:
    """Make the cookie of a sign-on attempt. It is lax, since the browser sends it when the provider redirects back."""
    is_secure = _own_address(request).startswith("https:")
    return Cookie(
        SIGN_ON_COOKIE,
        value=value,
        max_age=seconds,
        path="/session",
        httponly=True,
        samesite="lax",
        secure=is_secure,
    )


def _session_cookie(request: Request[Any, Any, Any], secret: str) -> Cookie:
    return Cookie(
        COOKIE,
        value=secret,
        httponly=True,
        samesite="strict",
        secure=_own_address(request).startswith("https:"),
    )


@post(
    "/console/theme",
    opt=needs(Right.lookup, scoped=CorpusLimit.filter),
    include_in_schema=False,
    sync_to_thread=False,
)
def choose_theme(form: FromForm) -> Redirect:
    """Store the chosen theme in a cookie and return to the page."""
    chosen = form.raw("theme")
    kept = Cookie(
        THEME_COOKIE, value=chosen if chosen in THEMES else "system", max_age=_YEAR, samesite="strict"
    )
    return Redirect(_local_path(form.raw("back")), status_code=303, cookies=[kept])


def sign_in_form(scope: HTTPScope, error: KBError, sign_on: SignOnSettings) -> ASGIResponse:
    """Give the sign-in form with the status of this error. After the sign-in it leads back to the requested page."""
    asked = Request[None, Any, Any](scope)
    back = f"{asked.url.path}?{asked.url.query}" if asked.method == "GET" else ""
    status, message = 401, ""  # to be shown the form is no denial, so the request's refusal is not set
    if error.code != "NotSignedIn":
        problem, _ = problem_of(error)
        status, message = problem.status, problem.detail
    body = _render_sign_in(back, theme_of(asked.cookies), message, sign_on)
    return ASGIResponse(body=body.encode(), status_code=status, media_type="text/html", headers=_REFUSED)


def _render_sign_in(back: str, theme: str, message: str, sign_on: SignOnSettings) -> str:
    provider = sign_on.name if sign_on.issuer and sign_on.client_id else None
    return render(
        "sign_in.html",
        back=_local_path(back),
        theme=theme,
        message=message,
        provider=provider,
        sign_on_href=f"{SIGN_ON_PATH}?{urlencode({'back': _local_path(back)})}",
    )


def _local_path(path: str) -> str:
    """Give the path if it is a page of the console, else "/", so that the form cannot redirect to another site."""
    return path if path.startswith("/console/") and "\\" not in path and path.isprintable() else "/"


_REFUSED = {**HEADERS, "WWW-Authenticate": "Bearer"}


@cache
def _read_static(name: str) -> str:
    return (HERE / "static" / name).read_text(encoding="utf-8")


# Tokens: their roles, when they expire, and when they were last used. A secret is shown once.

TOKENS_ON_A_PAGE = 200
ROLE_TEXTS = {
    "decoder": "look up, and store what a decoder said",
    "reader": "look up, read, ask",
    "operator": "read, edit, forget, audit",
    "auditor": "read, and audit",
    "trainer": "read, key and switch keysets, export",
    "admin": "everything, with tokens, erasures and backups",
}
GRACE_HOURS = (
    ("0", "ends at once"),
    ("1", "works for another hour"),
    ("24", "works for another day"),
    ("168", "works for another week"),
)


def _in_days(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def show_tokens(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show every token, also expired and revoked ones, and the form for another."""
    after, revoked = form.integer("after", low=0) or 0, form.integer("revoked")
    access = ports.kb.access
    found = access.all(after=after, limit=TOKENS_ON_A_PAGE + 1)
    ended = access.show(access.name_of(revoked)) if revoked else None
    return form_page(
        request,
        "tokens.html",
        form,
        tokens=found[:TOKENS_ON_A_PAGE],
        more=found[TOKENS_ON_A_PAGE - 1].key_id if len(found) > TOKENS_ON_A_PAGE else None,
        ended=ended if ended and ended.revoked_at else None,
        roles=[(role, f"{role}: {ROLE_TEXTS[role]}") for role in ROLES],
        most_days=LONGEST.days,
        most_rate=MAX_RATE,
        limit=ports.settings.rate_limit,
        corpora=corpus_options(ports),
    )


def _confirm_token(ports: Ports, request: PageRequest, token_id: int, form: Form) -> Page:
    token = ports.kb.access.show(ports.kb.access.name_of(token_id))
    return form_page(
        request,
        "token_edit.html",
        form,
        verb=verb_of(request),
        token=token,
        hours=GRACE_HOURS,
        most_days=LONGEST.days,
        is_own=token.key_id == request.user.key_id,
    )


@post("/tokens", opt=needs(Right.admin), sync_to_thread=True)
@show_again(show_tokens)
def create_token(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Create a token, and show its secret once."""
    name, role = form.text("name", limit=100), form.choice("role", list(ROLES))
    days, rate = form.integer("days", 1, LONGEST.days), form.integer("rate", 1, MAX_RATE)
    corpora = [form.raw("corpus")] if form.raw("corpus") else []
    form.check()
    secret, made = ports.kb.access.create(
        name, role, expires_in=_in_days(days), rate_limit=rate, corpora=corpora
    )
    return page(request, "token_secret.html", token=made, secret=secret, verb="made")


@on_each(get, "/tokens/{token_id:int}/rotate", "/tokens/{token_id:int}/revoke", right=Right.admin)
def ask_about_token(ports: FromPorts, request: PageRequest, token_id: PathId) -> Page:
    """Ask how long the old secret works, before a token gets another; or show whose it is, before it is revoked."""
    return _confirm_token(ports, request, token_id, Form())


@post("/tokens/{token_id:int}/rotate", opt=needs(Right.admin), sync_to_thread=True)
@show_again(_confirm_token)
def rotate_token(ports: FromPorts, request: PageRequest, token_id: PathId, form: FromForm) -> Page:
    """Give a token another secret, and show it once."""
    hours = form.choice("grace", [value for value, _ in GRACE_HOURS])
    days = form.integer("days", 1, LONGEST.days)
    form.check()
    name, grace = ports.kb.access.name_of(token_id), timedelta(hours=int(hours))
    secret, rotated = ports.kb.access.rotate(name, grace=grace, expires_in=_in_days(days))
    return page(request, "token_secret.html", token=rotated, secret=secret, verb="rotated")


@post("/tokens/{token_id:int}/revoke", opt=needs(Right.admin), sync_to_thread=True)
@show_again(_confirm_token)
def revoke_token(ports: FromPorts, request: PageRequest, token_id: PathId, form: FromForm) -> Page:
    """Revoke a token, with every secret of it, in every process."""
    ports.kb.access.revoke(ports.kb.access.name_of(token_id))
    return Redirect(f"/console/tokens?revoked={token_id}", status_code=303)


# The console's routes, from one module for each page. They all answer in HTML.

ROOT = "/console"


def is_page(path: str) -> bool:
    """Tell whether the path is a page for browsers, and not a route for programs."""
    return path in ("/", ROOT) or path.startswith(f"{ROOT}/")


@get("/{elsewhere:path}", opt=needs(Right.lookup, scoped=CorpusLimit.filter), sync_to_thread=False)
def nowhere(elsewhere: FromPath[str]) -> None:
    """Answer an unknown path with a page that says so."""
    raise NotFoundException


HANDLERS = (
    home,
    send_static,
    sign_in,
    sign_out,
    begin_sign_on,
    finish_sign_on,
    end_provider_sessions,
    choose_theme,
    Router(
        ROOT,
        route_handlers=[
            *outputs.HANDLERS,
            *facts.HANDLERS,
            *review.HANDLERS,
            *questions.HANDLERS,
            *removal.HANDLERS,
            *operations.HANDLERS,
            get("/tokens", opt=needs(Right.admin), sync_to_thread=True)(show_tokens),
            create_token,
            *ask_about_token,
            rotate_token,
            revoke_token,
            nowhere,
        ],
        include_in_schema=False,
        exception_handlers={Exception: show_problem},
    ),
)
