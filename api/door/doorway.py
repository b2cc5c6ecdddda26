"""The application that runs the same checks around every request, also one that no route matches.

Before routing it gives the request an id and the present name of its path, checks the host name, refuses it if the
server is draining, answers a CORS preflight, authenticates the token and counts it against the token's rate limit.
Afterwards it adds the security headers to the response, compresses it where that is safe, and writes to the journal who
was denied and who edited. A HEAD is taken for the GET whose head it asks for.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from litestar.concurrency import sync_to_thread
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.response.base import ASGIResponse
from litestar.utils import normalize_path
from sqlalchemy.exc import SQLAlchemyError

from colmlm.api import errors
from colmlm.api.console import pages, session
from colmlm.api.door import auth, requests
from colmlm.api.door.arrival import arrived
from colmlm.api.door.auth import LocalToken, bearer, lane_of
from colmlm.api.door.lanes import Lane, Lanes
from colmlm.api.door.limits import Clock, RateLimits, own_rates
from colmlm.api.door.requests import Asked
from colmlm.api.openai import errors as openai_errors
from colmlm.api.ports import Ports
from colmlm.api.routes.lookups import route
from colmlm.api.routes.short_way import ShortWay
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.logs import Journal
from colmlm.api.watch.operations import Watch
from colmlm.api.wire.requests import LOOPBACK
from colmlm.kb.errors import KBError
from colmlm.kb.service import KnowledgeBase

if TYPE_CHECKING:
    from litestar import Litestar
    from litestar.types import (
        ASGIApp,
        HTTPReceiveMessage,
        HTTPResponseStartEvent,
        HTTPScope,
        LifeSpanReceive,
        LifeSpanScope,
        LifeSpanSend,
        Message,
        Receive,
        Scope,
        Send,
    )


_HEADERS = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    # With "no-referrer" browsers would also hide the Origin of the sign-in form.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_PARTING = {"connection": "close"}


@dataclass(frozen=True, slots=True)
class Doorway:
    """The checks before routing, which a request passes in turn, and the journal that records the outcome."""

    gate: auth.Admission
    limits: RateLimits
    cors: Cors
    journal: Journal
    lanes: Lanes
    watch: Watch | None = None

    def check(self, scope: HTTPScope, headers: Headers) -> ASGIApp | None:
        """Raises the error that refuses a request whoever asks. Gives a response only to a preflight, which reaches no
        route.
        """
        self.gate.check_host(headers)
        self._check_drain(scope)
        return self.cors.preflight(scope["method"], headers)

    async def admit(self, scope: HTTPScope, headers: Headers, request: requests.Asked) -> None:
        """Sets the scope's user to the request's token, unless it has one already. Raises the error that refuses it."""
        if scope.get("user") is not None:
            return
        token = scope["user"] = await self.gate.admit(scope, headers)
        if token is not None:
            requests.admitted(request, token)
            self.limits.check(token)

    def _check_drain(self, scope: HTTPScope) -> None:
        """Raises `Draining` where the server is draining. Probes are always answered."""
        if self.watch is not None and self.watch.drain.has_begun and scope["path"] not in auth.PROBES:
            raise errors.Draining

    @property
    def parting(self) -> dict[str, str]:
        """The header that asks a client to connect again, to the process that takes over."""
        return _PARTING if self.watch is not None and self.watch.drain.hands_over else {}

    def watching(self, scope: HTTPScope, request: requests.Asked) -> AbstractContextManager[None]:
        return self.watch.running(scope, request) if self.watch is not None else nullcontext()


def doorway(
    kb: KnowledgeBase,
    settings: ServerSettings,
    lanes: Lanes,
    watch: Watch | None = None,
    clock: Clock = time.monotonic,
    local: LocalToken | None = None,
    limits: RateLimits | None = None,
) -> Doorway:
    """Builds the checks from the server's settings; they use the connections of this knowledge base.

    `clock` times the journal. Without `limits` only tokens with a rate of their own are limited.
    """
    return Doorway(
        auth.gate(kb.access, (*LOOPBACK, settings.host, *settings.allowed_hosts), lanes, local),
        limits or RateLimits(None, own_rates(clock)),
        cors(settings.cors_origins),
        Journal(kb.log, lanes, clock),
        lanes,
        watch,
    )


class GatedApp:
    """ASGI application: the checks of a `Doorway` around routes that hold nothing of a base.

    `ports` are what the routes of `routed` work with. A request that matches no route is checked, too.
    """

    def __init__(
        self,
        doorway: Doorway,
        routed: Litestar,
        ports: Ports | None = None,
        short_way: ShortWay | None = None,
    ) -> None:
        self.doorway, self.routed, self.short_way = doorway, routed, short_way
        self._state = {"lanes": doorway.lanes, "ports": ports}

    async def __call__(
        self,
        scope: Scope | LifeSpanScope,
        receive: Receive | LifeSpanReceive,
        send: Send | LifeSpanSend,
    ) -> None:
        if scope["type"] == ScopeType.HTTP:
            asked, sending = as_get(cast("HTTPScope", scope), cast("Send", send))
            asked["state"] = {**asked.get("state", {}), **self._state}
            await self._pass(asked, cast("Receive", receive), sending)
        elif scope["type"] == "lifespan":
            await self._live(cast("LifeSpanReceive", receive), cast("LifeSpanSend", send))

    async def _live(self, receive: LifeSpanReceive, send: LifeSpanSend) -> None:
        """Close the lanes' threads when the server ends. The routes have nothing to start or to end."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.doorway.lanes.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _pass(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        renamed, headers = under_its_present_name(scope), Headers.from_scope(scope)
        with requests.asked(headers) as request, self.doorway.watching(scope, request):
            said = {**requests.said(request), **renamed, **self.doorway.cors.headers(headers)}
            said |= self.doorway.parting
            sending = _hardened(compressing(scope, headers, send), said, request)
            receiving: Receive | None = receive
            try:
                answer = self.doorway.check(scope, headers)
                if answer is None and self.short_way is not None:
                    receiving = await self.short_way.take(scope, headers, request, receive, sending)
                if answer is None and receiving is not None:
                    await self.doorway.admit(scope, headers, request)
            except (KBError, SQLAlchemyError) as error:
                answer = _refused(scope, error)
            if answer is not None:
                await answer(scope, receive, sending)
            elif receiving is not None:
                route(scope)
                await self.routed(scope, receiving, sending)
            await self.doorway.journal.note(scope, request)


class InLane:
    """ASGI middleware that holds a place in the route's lane, from the end of the body until the response is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        lane = lane_of(scope)
        receiving = await arrived(scope, receive, lane)
        token = scope.get("user")
        with scope["state"]["lanes"].place(lane, token.key_id if token else None):
            if lane not in (Lane.reading, Lane.decoding):
                await self.app(scope, receiving, send)
                return
            async with noticed(receiving, requests.current()) as watched:
                await self.app(scope, watched, send)


def _refused(scope: HTTPScope, error: Exception) -> ASGIApp:
    """Gives the response for an error before routing.

    A browser without a token gets the sign-in form with the same status.
    """
    if isinstance(error, errors.NotSignedIn) and pages.is_page(scope["path"]):
        return session.sign_in_form(scope)
    return openai_errors.refusal(scope["path"], error)


def _hardened(send: Send, said: dict[str, str], request: requests.Asked) -> Send:
    """Wraps `send` to add the security headers to every response. A header that the response already has is kept."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            request.status = message["status"]
            headers = allowing_head(list(message.get("headers", ())))
            present = {name.lower() for name, _ in headers}
            added = [*_HEADERS, *((name.encode(), value.encode("latin-1")) for name, value in said.items())]
            message["headers"] = [*headers, *(one for one in added if one[0] not in present)]
        await send(message)

    return sending


# Lets paths that were renamed answer under their former name too, until 1.0.
#
# A request for a former path is given the present one before anything looks at it. So both spellings have one
# route, and with it the same rights, limits, lanes and idempotency.

PRESENT = {"/v1/keys": "/v1/tokens", "/console/keys": "/console/tokens"}
DEPRECATED = "@1795392000"  # 2026-11-23, in the form of RFC 9745


def under_its_present_name(scope: HTTPScope) -> dict[str, str]:
    """Gives the request the present path, and the response headers that say so; none where the path is present.

    A path is read as the router reads it, for which several slashes are one.
    """
    path = normalize_path(scope["path"])
    for former, present in PRESENT.items():
        if path == former or path.startswith(f"{former}/"):
            scope["path"] = present + path.removeprefix(former)
            scope["raw_path"] = quote(scope["path"]).encode()
            return {"deprecation": DEPRECATED, "link": f'<{present}>; rel="successor-version"'}
    return {}


# Answers HEAD wherever GET is answered: the same request, of whose response only the head is sent.

_ALLOW = b"allow"


def as_get(scope: HTTPScope, send: Send) -> tuple[HTTPScope, Send]:
    """Gives a HEAD as the GET whose head it asks for, by which metrics and logs name it; any other request as it is."""
    if scope["method"] != "HEAD":
        return scope, send
    return {**scope, "method": "GET"}, _bodiless(send)


def _bodiless(send: Send) -> Send:
    """Wraps `send` to end the response behind its head. To a stream that is as if the client had left."""
    is_ended = False

    async def sending(message: Message) -> None:
        nonlocal is_ended
        if is_ended:
            return
        await send(message)
        is_ended = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return sending


def allowing_head(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Adds HEAD to the allowed methods where GET is one, since no route names it."""
    return [
        (name, value + b", HEAD" if name.lower() == _ALLOW and b"GET" in value.split(b", ") else value)
        for name, value in headers
    ]


# Lets web pages of other origins call the API with a token (CORS). Off unless the settings name origins.
#
# Cookies give no access here: a browser does not send them from another site, and the gate accepts a write
# that relies on a cookie only from this server's own origin. So no response allows credentials.

METHODS = "DELETE, GET, HEAD, PATCH, POST, PUT"
SENT = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-ID"
EXPOSED = "Allow, Deprecation, Idempotency-Replayed, Link, Retry-After, X-Request-ID"


@dataclass(frozen=True, slots=True)
class Cors:
    """The allowed origins, as browsers name them: scheme, host, and the port if it is not the scheme's default."""

    origins: frozenset[str]

    def headers(self, request: Headers) -> dict[str, str]:
        """Gives the CORS headers of the response to this request.

        They depend on the origin, which `Vary` tells caches.
        """
        if not self.origins:
            return {}
        origin = request.get("origin", "")
        allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED}
        return {"vary": "Origin", **(allowed if origin in self.origins else {})}

    def preflight(self, method: str, request: Headers) -> ASGIResponse | None:
        """Gives the response to a preflight of an allowed origin, which carries no key; None for any other request."""
        is_preflight = method == "OPTIONS" and "access-control-request-method" in request
        if not is_preflight or request.get("origin") not in self.origins:
            return None
        allowed = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": SENT,
            "access-control-max-age": "600",
        }
        return ASGIResponse(status_code=204, headers=allowed)


def cors(origins: Iterable[str]) -> Cors:
    return Cors(frozenset(origins))


# Notices that a client has disconnected, so that decoding for it stops at the next token and frees its place.
#
# An ASGI server reports a disconnect to whoever calls `receive` after the body. Litestar calls it only while
# it streams, so a task here calls it once the body is complete, and passes the disconnect on.


@asynccontextmanager
async def noticed(receive: Receive, request: Asked | None) -> AsyncIterator[Receive]:
    """Gives a `receive` for use within the context. `request.has_left` becomes true when the client disconnects."""
    departure = _Departure(receive, request)
    try:
        yield departure.receive
    finally:
        await departure.close()


class _Departure:
    def __init__(self, receive: Receive, request: Asked | None) -> None:
        self._receive, self._request = receive, request
        self._left = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def receive(self) -> HTTPReceiveMessage:
        if self._watching is not None:
            await self._left.wait()
            return {"type": "http.disconnect"}
        message: HTTPReceiveMessage = await self._receive()  # type: ignore[assignment]
        if message["type"] == "http.disconnect":
            self._leave()
        elif not message.get("more_body"):
            self._watching = asyncio.create_task(self._watch())
        return message

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self._left.set()
        if self._request is not None:
            self._request.has_left = True

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching


# Compresses large responses to reads, with Zstandard or gzip, as the client accepts.
#
# The length of a compressed response tells who watches the connection whether what was sent recurs in what is
# secret there (BREACH). So only responses to GET with a bearer token are compressed: no site can make a
# browser send one, as it can a cookie, and what POST sends is not in them. Streams are sent as they come.

LEAST_BYTES = 1400  # what fits in one packet arrives no sooner for being shorter
_KINDS = ("json", "msgpack", "text/plain")  # how the types of answers in one piece end


def _zstd(body: bytes) -> bytes:
    import pyarrow  # imported here, since that takes time

    compressed: bytes = pyarrow.compress(body, codec="zstd", asbytes=True)
    return compressed


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=6, mtime=0)


_CODECS: dict[str, Callable[[bytes], bytes]] = {"zstd": _zstd, "gzip": _gzip}  # the preferred one first


def compressing(scope: HTTPScope, headers: Headers, send: Send) -> Send:
    """Wraps `send` to compress the response, where the request allows that."""
    if scope["method"] != "GET" or not bearer(headers):
        return send
    accepted = _accepted(headers.get("accept-encoding", ""))
    codec = next((name for name in _CODECS if name in accepted), None)
    return send if codec is None else _Compressed(send, codec)


def _accepted(header: str) -> set[str]:
    """Gives the names of encodings in a header, without those of weight 0."""
    parts = [part.partition(";") for part in header.lower().replace(" ", "").split(",")]
    return {name for name, _, weight in parts if not weight or weight.strip("q=0.")}


class _Compressed:
    """A `send` that holds the head of a response back until its body tells whether it is in one piece and large.

    What is no text of one piece, such as a stream of events, passes at once.
    """

    def __init__(self, send: Send, codec: str) -> None:
        self._send, self._codec = send, codec
        self._start: HTTPResponseStartEvent | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _can_be(message):
            self._start = message
            return
        if message["type"] == "http.response.body" and self._start is not None:
            start, self._start = self._start, None
            if not message.get("more_body") and len(message["body"]) >= LEAST_BYTES:
                message["body"] = await sync_to_thread(_CODECS[self._codec], message["body"])
                self._tell(start, len(message["body"]))
            await self._send(start)
        await self._send(message)

    def _tell(self, start: HTTPResponseStartEvent, length: int) -> None:
        headers = MutableScopeHeaders.from_message(start)
        headers["content-encoding"], headers["content-length"] = self._codec, str(length)
        headers.extend_header_value("vary", "Accept-Encoding")


def _can_be(start: HTTPResponseStartEvent) -> bool:
    headers = MutableScopeHeaders.from_message(start)
    kind = headers.get("content-type", "").partition(";")[0]
    return kind.endswith(_KINDS) and "content-encoding" not in headers
