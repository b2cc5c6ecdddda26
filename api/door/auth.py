"""Who is asking, and may they: decided before routing, so that no route can be left open.

A program sends its API key as a bearer token. A browser trades the key once, at POST /session, for a session: a cookie
that says nothing of the key, that scripts can't read and other sites can't send. It ends at the sign-out, after
`kb.access.browser_sessions.LIFE`, and with the key. Since a cookie travels by itself, a write that relies on it must
also come from this server's own origin. The Host header must be one of the server's names, which stops a foreign
name that resolves to a loopback address (DNS rebinding).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from litestar.datastructures import Headers
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from colmlm.api.door.lanes import Lane, Lanes
from colmlm.api.door.rights import SAFE_METHODS
from colmlm.api.errors import CrossOrigin, NotSignedIn, UnknownHost
from colmlm.kb.access import browser_sessions
from colmlm.kb.access.api_keys import ApiKeyRecord, note_use, verify

if TYPE_CHECKING:
    from litestar.types import HTTPScope

COOKIE = "colmlm_session"
SIGN_IN_PATH = "/session"
STATIC_PATH = "/console/static/"
PROBES = frozenset({"/healthz", "/readyz"})  # they say next to nothing, and what asks them has no key
_HOST = re.compile(
    r"(?:(?P<name>[A-Za-z0-9._-]+)|\[(?P<address>[A-Za-z0-9:.%_-]+)\])(?::(?P<port>[0-9]{1,5}))?"
)
LOOPBACK = ("127.0.0.1", "::1", "localhost")

Verified = Callable[[Engine, str], ApiKeyRecord | None]


@dataclass(frozen=True, slots=True)
class Gate:
    """Admits a request as an API key, or raises what to refuse it with. `hosts` are names without a port."""

    engine: Engine
    hosts: frozenset[str]
    lanes: Lanes

    def check_host(self, headers: Headers) -> None:
        """Raise `UnknownHost` unless the request names this server."""
        named = headers.getall("host", [])
        if len(named) != 1 or _hostname(named[0]) not in self.hosts:
            raise UnknownHost

    async def admit(self, scope: HTTPScope, headers: Headers) -> ApiKeyRecord | None:
        """The key that asks; None for what is open: sign-in, whose handler checks the key, probes, static files."""
        if is_open(scope):
            return None
        bearer = _bearer(headers)
        key = await self._verified(
            *((key_of, bearer) if bearer is not None else (key_of_session, session_of(headers)))
        )
        if bearer is None and scope["method"] not in SAFE_METHODS:
            check_origin(headers)
        return key

    async def _verified(self, verified: Verified, secret: str | None) -> ApiKeyRecord:
        key = await self.lanes.run(Lane.door, verified, self.engine, secret) if secret else None
        if key is None:
            raise NotSignedIn
        return key


def gate(engine: Engine, hosts: Iterable[str], lanes: Lanes) -> Gate:
    """A gate that answers to these host names in any case; IPv6 addresses without brackets."""
    return Gate(engine, frozenset(host.strip("[]").lower() for host in hosts), lanes)


def key_of(engine: Engine, token: str) -> ApiKeyRecord | None:
    """The working key of a token. Asked anew for every request, so that revoking a key holds at once."""
    with Session(engine) as session:
        key = verify(session, token)
        if key is not None and note_use(session, key):
            session.commit()
        return key


def key_of_session(engine: Engine, secret: str) -> ApiKeyRecord | None:
    """The working key behind a browser's session, asked anew for every request as well."""
    with Session(engine) as session, session.begin():
        key = browser_sessions.key_of(session, secret)
        if key is not None:
            note_use(session, key)
        return key


def begin_session(engine: Engine, key: ApiKeyRecord, before: str | None) -> str:
    """What the cookie of a browser holds that signs in with this key. The session it had `before` ends."""
    with Session(engine) as session, session.begin():
        if before is not None:
            browser_sessions.end(session, before)
        return browser_sessions.begin(session, key)


def end_session(engine: Engine, secret: str) -> None:
    with Session(engine) as session, session.begin():
        browser_sessions.end(session, secret)


def is_open(scope: HTTPScope) -> bool:
    """The sign-in itself, the style and script of its form, the same in every installation, and the probes."""
    if scope["method"] == "GET":
        return scope["path"].startswith(STATIC_PATH) or scope["path"] in PROBES
    return scope["path"] == SIGN_IN_PATH and scope["method"] == "POST"


def check_origin(headers: Headers) -> None:
    """Raise `CrossOrigin` unless a page of this very host and port sent the request. Browsers name it on writes."""
    origin = urlsplit(headers.get("origin", ""))
    if origin.scheme not in ("http", "https") or origin.netloc.lower() != headers.get("host", "").lower():
        raise CrossOrigin


def _bearer(headers: Headers) -> str | None:
    """The bearer token; empty where the header holds something else, so that it does not fall back to a cookie."""
    if (header := headers.get("authorization")) is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def session_of(headers: Headers) -> str | None:
    """What the cookie of a request holds."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found else None


def _hostname(host: str) -> str | None:
    """The name in a Host header; None where it holds anything beside a name and a port, such as a user."""
    found = _HOST.fullmatch(host)
    if found is None or not 0 < int(found["port"] or 1) < 65536:
        return None
    return (found["name"] or found["address"]).lower()
