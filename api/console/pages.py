"""The console: one page, its script and style, and the sign-in that trades a key for a cookie."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from litestar import Request, Response, delete, get, post
from litestar.concurrency import sync_to_thread
from litestar.datastructures import Cookie
from litestar.exceptions import NotFoundException
from litestar.params import PathParameter
from litestar.response import Redirect
from litestar.response.base import ASGIResponse

from api.auth import COOKIE, SIGN_IN_PATH, check_origin, key_of
from api.ports import FromPorts
from api.rights import Right, needs

_HERE = Path(__file__).parent
_SCRIPTS = dict.fromkeys(("app.js", "client.js", "output.js", "evidence.js"), "text/javascript")
_FILES = {**_SCRIPTS, "style.css": "text/css", "icon.svg": "image/svg+xml"}

_POLICY = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
_PAGE_POLICY = f"{_POLICY}; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"


@get("/", opt=needs(Right.read), include_in_schema=False, sync_to_thread=True)
def page() -> Response[str]:
    """The console. Without a key the gate answers with `sign_in_form` instead."""
    return Response(
        _read("index.html"), media_type="text/html", headers={"Content-Security-Policy": _PAGE_POLICY}
    )


@get("/console/{name:str}", opt=needs(Right.read), include_in_schema=False, sync_to_thread=True)
def file(name: Annotated[str, PathParameter()]) -> Response[str]:
    """A script or the style of the page; a listed name, never a path."""
    if name not in _FILES:
        raise NotFoundException
    return Response(_read(name), media_type=_FILES[name])


@post(SIGN_IN_PATH, include_in_schema=False)
async def sign_in(request: Request[None, Any, Any], ports: FromPorts) -> Response[Any]:
    """Check the form's key and keep it in a cookie of this browser session that no script can read."""
    token = str((await request.form()).get("key", "")).strip()
    if not token or await sync_to_thread(key_of, ports.kb.engine, token) is None:
        form = _form("This key does not work. It may be misspelt or revoked.")
        return Response(form, status_code=401, media_type="text/html", headers=_form_headers())
    check_origin(request.headers)  # else another site could sign this browser in under its own key
    cookie = Cookie(
        COOKIE, value=token, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return Redirect("/", status_code=303, cookies=[cookie])


@delete(SIGN_IN_PATH, status_code=204, opt=needs(Right.lookup), include_in_schema=False, sync_to_thread=False)
def sign_out() -> Response[None]:
    """Forget the cookie. The key goes on working elsewhere; revoke it to end it."""
    gone = Cookie(COOKIE, value="", max_age=0, httponly=True, samesite="strict")
    return Response(None, cookies=[gone])


HANDLERS = (page, file, sign_in, sign_out)


def sign_in_form() -> ASGIResponse:
    """The form, with the status of a request without a key."""
    return ASGIResponse(
        body=_form("").encode(), status_code=401, media_type="text/html", headers=_form_headers()
    )


def _form(message: str) -> str:
    """`message` is one of ours, never something that was sent."""
    return _read("sign_in.html").replace("{message}", message)


@cache
def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def _form_headers() -> dict[str, str]:
    """The form's style is in the page, since a file would need the key; its hash lets it and nothing else through."""
    style = re.search(r"<style>(.*?)</style>", _read("sign_in.html"), re.DOTALL)
    assert style is not None, "the sign-in form has no style"
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    policy = f"{_POLICY}; style-src 'sha256-{digest}'"
    return {"Content-Security-Policy": policy, "WWW-Authenticate": "Bearer"}
