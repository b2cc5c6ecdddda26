"""Authenticate every request before it is routed, so that no route can be left open.

A program sends its token's secret in the Authorization header. A browser trades it once, at POST /session, for a
session: a cookie that says nothing of the token, that scripts can't read and other sites can't send. It ends at the
sign-out, after `kb.access.access.LIFE`, and with the token. Since
a cookie travels by itself, a write that relies on it must also come from this server's own origin. The Host header must
be one of the server's names, which stops a foreign name that resolves to a loopback address (DNS rebinding). People of
an identity provider bear its tokens in place of a secret, or begin a session there (`api.middleware.sign_on`).
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.handlers import BaseRouteHandler

from colmlm.api.errors import PROBLEMS, cross_origin, not_signed_in, right_missing, unknown_host
from colmlm.api.middleware.limiters import Batcher, Limiter, Limiters
from colmlm.api.middleware.sign_on import LOGOUT_PATH, RETURN_PATH, SIGN_ON_PATH, SignOn, is_web_token
from colmlm.kb.access.access import Access
from colmlm.kb.access.records import MAX_RATE, Right, TokenRecord
from colmlm.kb.access.tokens import digest_of, new_secret
from colmlm.kb.errors import refusals
from colmlm.kb.principal import Principal, local_principal, work_as_service

if TYPE_CHECKING:
    from litestar.types import HTTPScope

COOKIE = "colmlm_session"
SIGN_IN_PATH = "/session"
STATIC_PATH = "/console/static/"
PROBES = frozenset({"/healthz", "/readyz"})  # probes have no token, and the responses tell almost nothing
_HOST = re.compile(
    r"(?:(?P<name>[A-Za-z0-9._-]+)|\[(?P<address>[A-Za-z0-9:.%_-]+)\])(?::(?P<port>[0-9]{1,5}))?"
)

MOST_AT_ONCE = 256  # secrets in one statement


@dataclass(frozen=True, slots=True)
class Admission:
    """Authenticate a request by its token, or raise the error that refuses it. `hosts` are names without a port."""

    access: Access
    hosts: frozenset[str]
    limiters: Limiters
    tokens: Batcher[str, TokenRecord | None]
    local: LocalToken | None = None
    sign_on: SignOn | None = None

    def check_host(self, headers: Headers) -> None:
        """Raise `UnknownHost` unless the Host header names this server."""
        named = headers.getall("host", [])
        if len(named) != 1 or _hostname(named[0]) not in self.hosts:
            raise unknown_host(", ".join(named))

    async def admit(self, scope: HTTPScope, headers: Headers) -> TokenRecord | None:
        """Authenticate a request and give its token; None if it needs none (`is_open`, `is_sign_on`).

        The sign-in checks its token itself. Raises the error that refuses the request.
        """
        if is_open(scope) or (self.sign_on is not None and is_sign_on(scope)):
            return None
        if (secret := bearer_secret(headers)) is not None:
            return self._signed_in(await self._token_of_secret(secret))
        token = self._signed_in(await self._token_of_session(session_of(headers)))
        if token.groups is not None:
            token = self._signed_in(None if self.sign_on is None else self.sign_on.of_session(token))
        if scope["method"] not in SAFE_METHODS:
            check_origin(headers)
        return token

    async def _token_of_secret(self, secret: str) -> TokenRecord | None:
        if not secret:
            return None
        if self.local is not None and (local := self.local.of_secret(secret)) is not None:
            return local
        if self.sign_on is not None and is_web_token(secret):
            return await self.limiters.run(Limiter.sign_on, self.sign_on.of_bearer, secret)
        with self.limiters.slot(Limiter.auth):
            return await self.tokens.ask(secret)

    async def _token_of_session(self, secret: str | None) -> TokenRecord | None:
        return await self.limiters.run(Limiter.auth, self.access.of_session, secret) if secret else None

    @staticmethod
    def _signed_in(token: TokenRecord | None) -> TokenRecord:
        if token is None:
            raise not_signed_in()
        return token


def build_admission(
    access: Access,
    hosts: Iterable[str],
    limiters: Limiters,
    local: LocalToken | None = None,
    sign_on: SignOn | None = None,
) -> Admission:
    """Make the authentication of requests to these hosts, in any case. IPv6 addresses may have brackets or not."""
    names = frozenset(host.strip("[]").lower() for host in hosts)
    tokens = limiters.make_batcher(Limiter.auth, access.of_secrets, MOST_AT_ONCE)
    return Admission(access, names, limiters, tokens, local, sign_on)


def is_open(scope: HTTPScope) -> bool:
    """Tell whether a request needs no token: the sign-in, the static files of its form, and the probes."""
    if scope["method"] == "GET":
        return scope["path"].startswith(STATIC_PATH) or scope["path"] in PROBES
    return scope["path"] == SIGN_IN_PATH and scope["method"] == "POST"


def is_sign_on(scope: HTTPScope) -> bool:
    """Tell whether a request begins or ends a single sign-on, or its sessions, which needs no token."""
    if scope["method"] == "POST":
        return scope["path"] == LOGOUT_PATH
    return scope["method"] == "GET" and scope["path"] in (SIGN_ON_PATH, RETURN_PATH)


def check_origin(headers: Headers) -> None:
    """Raise `CrossOrigin` unless the Origin header, which browsers send with writes, names this host and port."""
    named, host = headers.get("origin", ""), headers.get("host", "")
    origin = urlsplit(named)
    if origin.scheme not in ("http", "https") or origin.netloc.lower() != host.lower():
        raise cross_origin(named, host)


def bearer_secret(headers: Headers) -> str | None:
    """Give the secret in the Authorization header, or None without the header.

    Another scheme gives "", so that no cookie is tried instead.
    """
    if (header := headers.get("authorization")) is None:
        return None
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def session_of(headers: Headers) -> str | None:
    """Give the session secret in the request's cookie, or None without one."""
    return cookie_of(headers, COOKIE)


def cookie_of(headers: Headers, name: str) -> str | None:
    """Give the content of the request's cookie of this name, or None without one."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return found.value if found else None


def _hostname(host: str) -> str | None:
    """Give the name in a Host header, or None where it holds more than a name and a port, such as a user."""
    found = _HOST.fullmatch(host)
    if found is None or not 0 < int(found["port"] or 1) < 65536:
        return None
    return (found["name"] or found["address"]).lower()


# Declares which right a route needs, and its limiter: `opt=needs(Right.read)`. Without a right it needs
# `Right.admin`.
#
# The limiter follows from the right and the method. A route names one only where it waits for something else.

__all__ = ["EDITING", "Limiter", "Right", "is_edit", "limiter_of", "needs", "require_right", "right_of"]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
EDITING = frozenset(Right) - {Right.lookup, Right.read}

_OPT, _LIMITER, _SCOPED = "right", "limiter", "scoped"


class CorpusLimit(StrEnum):
    """The way in which a route is limited to the corpora of a scoped token.

    By `rows`, the database shows only rows of these corpora. By a `filter`, lookups and answers find only their facts
    (`kb.lookup.options`), or the response has nothing of any corpus. By `targets`, `routes.parameters.edit_in_scope`
    first checks that all that the route edits is in them. Without that call the database refuses the route's writes.
    """

    rows = "by rows"
    filter = "by a filter"
    targets = "by targets"


def needs(right: Right, limiter: Limiter | None = None, scoped: CorpusLimit | None = None) -> dict[str, Any]:
    """Give the `opt` of a route or router. Without `limiter`, `limiter_of` chooses that of lookups, edits or reads.

    Without `scoped` the route refuses tokens that are limited to some corpora.
    """
    given = {_OPT: right, _LIMITER: limiter, _SCOPED: scoped}
    return {name: value for name, value in given.items() if value is not None}


def in_thread(
    right: Right,
    limiter: Limiter | None = None,
    extra: dict[str, Any] | None = None,
    *,
    scoped: CorpusLimit | None = None,
) -> dict[str, Any]:
    """Give the keyword arguments of a route decorator for a handler in a thread, with `needs` and error responses."""
    opt = needs(right, limiter, scoped) | (extra or {})
    return {"opt": opt, "responses": PROBLEMS, "sync_to_thread": True}


def right_of(handler: BaseRouteHandler) -> Right:
    """Give the right that this route needs: `Right.admin` if it declares none."""
    needed: Right = handler.opt.get(_OPT, Right.admin)
    return needed


def is_edit(scope: HTTPScope) -> bool:
    """Tell whether the request's route changes or starts something and needs more than a right to read."""
    handler = scope.get("route_handler")
    return handler is not None and scope["method"] not in SAFE_METHODS and right_of(handler) in EDITING


def limiter_of(scope: HTTPScope) -> Limiter:
    """Give the limiter of the matched route: the declared one, or that of edits, lookups or reads."""
    handler = scope["route_handler"]
    named: Limiter | None = handler.opt.get(_LIMITER)
    if named is not None:
        return named
    if is_edit(scope):
        return Limiter.edits
    return Limiter.lookups if right_of(handler) is Right.lookup else Limiter.reads


async def require_right(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Guard every route: raises `RightMissing` unless the token's role has the right in the route's `opt`.

    Raises `NeedsAllCorpora` if the token is limited to some corpora, and the route declares no `CorpusLimit`.
    """
    token: TokenRecord | None = connection.scope["user"]
    if token is None:  # one of the open paths, which `Admission.admit` lets pass
        return
    needed = right_of(handler)
    if not token.may(needed):
        raise right_missing(token.role, needed)
    if token.corpora is not None:
        scoped: CorpusLimit | None = handler.opt.get(_SCOPED)
        if scoped is None:
            raise refusals.needs_all_corpora(token.corpora)
        if scoped is CorpusLimit.filter:
            work_as_service()


# LocalToken: a token that a server makes for commands of its own user, and that ends with the server.

ROLE = "reader"
_KEY_ID = 0  # the database counts from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTokenRecord(TokenRecord):
    """The record of a local token. Its principal is the user whom the server runs as."""

    @property
    def principal(self) -> Principal:
        return local_principal()


class LocalToken:
    """A token with the role `reader` that no database, log or backup holds. Its maker decides where its secret goes."""

    def __init__(self) -> None:
        self.secret = new_secret()
        self._digest = digest_of(self.secret)
        self._record = LocalTokenRecord(
            key_id=_KEY_ID,
            name=str(local_principal()),
            role=ROLE,
            prefix=None,
            created_at=datetime.now(UTC),
            expires_at=None,
            last_used_at=None,
            rate_limit=MAX_RATE,
            rotated_at=None,
            previous_until=None,
            previous_used_at=None,
            revoked_at=None,
        )

    def of_secret(self, secret: str) -> TokenRecord | None:
        """Give the token's record if this is its secret, else None. The comparison takes constant time."""
        return self._record if hmac.compare_digest(self._digest, digest_of(secret)) else None
