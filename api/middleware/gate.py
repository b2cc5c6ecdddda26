"""The application that runs the same checks around every request, also one that no route matches.

Before routing it gives the request an id and the present name of its path, checks the host name, refuses it if the
server is draining, answers a CORS preflight, authenticates the token and counts it against the token's rate limit.
Afterwards it adds the security headers to the response, compresses it where that is safe, and writes to the journal who
was denied and who edited. A HEAD is taken for the GET whose head it asks for.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from litestar.concurrency import sync_to_thread
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.utils import normalize_path
from sqlalchemy.exc import SQLAlchemyError

from colmlm.api import errors, request_context
from colmlm.api.middleware import auth
from colmlm.api.middleware.auth import SAFE_METHODS, LocalToken, bearer_secret, limiter_of
from colmlm.api.middleware.connections import Drain
from colmlm.api.middleware.limiters import Limiter, Limiters, RateLimits, own_rates
from colmlm.api.middleware.sign_on import SignOn
from colmlm.api.request_context import RequestState
from colmlm.api.settings import ServerSettings
from colmlm.api.wire import LOOPBACK
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHooks:
    """Callbacks for each request: `refuse` makes the response to an error, `measure` wraps it, `note` logs it.

    `find_route` may give a request another path before it is routed.
    """

    refuse: Callable[[HTTPScope, Exception], ASGIApp] = lambda scope, error: errors.refusal(error)
    find_route: Callable[[HTTPScope], None] = lambda scope: None
    measure: Callable[[HTTPScope, RequestState], AbstractContextManager[None]] = lambda scope, request: (
        nullcontext()
    )
    note: Callable[[HTTPScope, RequestState], Awaitable[None]] | None = None
    drain: Drain | None = None


@dataclass(frozen=True, slots=True)
class RequestGate:
    """The checks before routing, which a request passes in turn."""

    admission: auth.Admission
    limits: RateLimits
    cors: Cors
    limiters: Limiters
    around: RequestHooks

    def check(self, scope: HTTPScope, headers: Headers) -> ASGIApp | None:
        """Raise the error that refuses a request of any caller. Give the response to a CORS preflight, else None."""
        self.admission.check_host(headers)
        self._check_drain(scope)
        return self.cors.preflight(scope["method"], headers)

    async def admit(self, scope: HTTPScope, headers: Headers, request: RequestState) -> None:
        """Set the scope's user to the request's token, or to None. Raise the error that refuses the request."""
        token = scope["user"] = await self.admission.admit(scope, headers)
        if token is not None:
            request_context.set_principal(request, token)
            self.limits.check(token)

    def _check_drain(self, scope: HTTPScope) -> None:
        """Raise `Draining` where the server is draining. Probes are always answered."""
        drain = self.around.drain
        if drain is not None and drain.has_begun and scope["path"] not in auth.PROBES:
            raise errors.server_draining()

    @property
    def closing_header(self) -> dict[str, str]:
        """The header that asks a client to connect again, to the process that takes over."""
        return _PARTING if self.around.drain is not None and self.around.drain.hands_over else {}


def build_gate(
    kb: KnowledgeBase,
    settings: ServerSettings,
    limiters: Limiters,
    local: LocalToken | None = None,
    limits: RateLimits | None = None,
    around: RequestHooks | None = None,
    sign_on: SignOn | None = None,
) -> RequestGate:
    """Build the checks from the server's settings; they use the connections of this knowledge base.

    Without `limits` only tokens with a rate of their own are limited.
    """
    return RequestGate(
        auth.build_admission(
            kb.access, (*LOOPBACK, settings.host, *settings.allowed_hosts), limiters, local, sign_on
        ),
        limits or RateLimits(None, own_rates()),
        build_cors(settings.cors_origins),
        limiters,
        around or RequestHooks(),
    )


class GatedApp:
    """ASGI application: the checks of a `RequestGate` around routes that hold no knowledge base.

    Each request brings `state` to the routes of `routed`. A request that matches no route is checked, too.
    """

    def __init__(
        self, gate: RequestGate, routed: Litestar, state: Mapping[str, object] | None = None
    ) -> None:
        self.gate, self.routed = gate, routed
        self._state = {"limiters": gate.limiters, **(state or {})}

    async def __call__(
        self,
        scope: Scope | LifeSpanScope,
        receive: Receive | LifeSpanReceive,
        send: Send | LifeSpanSend,
    ) -> None:
        if scope["type"] == ScopeType.HTTP:
            asked, sending = as_get(cast("HTTPScope", scope), cast("Send", send))
            asked["state"] = {**asked.get("state", {}), **self._state}
            await self._handle_request(asked, cast("Receive", receive), sending)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(cast("LifeSpanReceive", receive), cast("LifeSpanSend", send))

    async def _run_lifespan(self, receive: LifeSpanReceive, send: LifeSpanSend) -> None:
        """Close the limiters' threads when the server ends. The routes have nothing to start or to end."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.gate.limiters.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _handle_request(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        gate, around = self.gate, self.gate.around
        renamed, headers = rename_path(scope), Headers.from_scope(scope)
        with request_context.begin_request(headers) as request, around.measure(scope, request):
            added = {
                **request_context.id_headers(request),
                **renamed,
                **gate.cors.headers(headers),
                **gate.closing_header,
            }
            sending = _add_headers(compress_response(scope, headers, send), added, request)
            try:
                answer = gate.check(scope, headers)
                if answer is None:
                    await gate.admit(scope, headers, request)
            except (KBError, SQLAlchemyError) as error:
                answer = around.refuse(scope, error)
            if answer is None:
                around.find_route(scope)
                answer = self.routed
            await answer(scope, receive, sending)
            if around.note is not None:
                await around.note(scope, request)


class LimiterMiddleware:
    """ASGI middleware that holds a slot in the route's limiter from the end of the body until the response is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        limiter = limiter_of(scope)
        receiving = await await_body(scope, receive, limiter)
        token = scope.get("user")
        with scope["state"]["limiters"].slot(limiter, token.key_id if token else None):
            if limiter not in (Limiter.reading, Limiter.decoding):
                await self.app(scope, receiving, send)
                return
            async with notice_departure(receiving, request_context.current()) as watched:
                await self.app(scope, watched, send)


def _add_headers(send: Send, said: dict[str, str], request: request_context.RequestState) -> Send:
    """Wrap `send` to add the security headers to every response. A header that the response already has is kept."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            request.status = message["status"]
            headers = allow_head(list(message.get("headers", ())))
            present = {name.lower() for name, _ in headers}
            added = [*_HEADERS, *((name.encode(), value.encode("latin-1")) for name, value in said.items())]
            message["headers"] = [*headers, *(one for one in added if one[0] not in present)]
        await send(message)

    return sending


# Lets paths that were renamed answer under their former name too, until 1.0.
#
# A request for a former path is given the present one before anything looks at it. So both spellings have one
# route, and with it the same rights, limits, limiters and idempotency.

PRESENT = {"/v1/keys": "/v1/tokens", "/console/keys": "/console/tokens"}
DEPRECATED = "@1795392000"  # 2026-11-23, in the form of RFC 9745


def rename_path(scope: HTTPScope) -> dict[str, str]:
    """Replace a former path of the request by the present one. Give the response headers that say so, if any.

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
    """Convert a HEAD to the GET whose head it asks for, as which it is logged. Leave other requests as they are."""
    if scope["method"] != "HEAD":
        return scope, send
    return {**scope, "method": "GET"}, _drop_body(send)


def _drop_body(send: Send) -> Send:
    """Wrap `send` to end the response behind its head. A stream then ends as if the client had left."""
    is_ended = False

    async def sending(message: Message) -> None:
        nonlocal is_ended
        if is_ended:
            return
        await send(message)
        is_ended = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return sending


def allow_head(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Give the response headers, with HEAD added to an `Allow` header that has GET, since no route names HEAD."""
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
        """Give the CORS headers of the response to this request.

        They depend on the origin, which `Vary` tells caches.
        """
        if not self.origins:
            return {}
        origin = request.get("origin", "")
        allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED}
        return {"vary": "Origin", **(allowed if origin in self.origins else {})}

    def preflight(self, method: str, request: Headers) -> ASGIResponse | None:
        """Give the response to a preflight of an allowed origin, which carries no token; None for any other request."""
        is_preflight = method == "OPTIONS" and "access-control-request-method" in request
        if not is_preflight or request.get("origin") not in self.origins:
            return None
        allowed = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": SENT,
            "access-control-max-age": "600",
        }
        return ASGIResponse(status_code=204, headers=allowed)


def build_cors(origins: Iterable[str]) -> Cors:
    return Cors(frozenset(origins))


# Notices that a client has disconnected, so that decoding for it stops at the next token and frees its place.
#
# An ASGI server reports a disconnect to whoever calls `receive` after the body. Litestar calls it only while
# it streams, so a task here calls it once the body is complete, and passes the disconnect on.


@asynccontextmanager
async def notice_departure(receive: Receive, request: RequestState | None) -> AsyncIterator[Receive]:
    """Give a `receive` for use within the context. `request.has_left` becomes true when the client disconnects."""
    departure = _Departure(receive, request)
    try:
        yield departure.receive
    finally:
        await departure.close()


class _Departure:
    def __init__(self, receive: Receive, request: RequestState | None) -> None:
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
            self._watching = asyncio.create_task(self._await_disconnect())
        return message

    async def _await_disconnect(self) -> None:
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


def compress_response(scope: HTTPScope, headers: Headers, send: Send) -> Send:
    """Wrap `send` to compress the response to a GET with a bearer token, in an encoding that the client accepts."""
    if scope["method"] != "GET" or not bearer_secret(headers):
        return send
    accepted = _accepted_encodings(headers.get("accept-encoding", ""))
    codec = next((name for name in _CODECS if name in accepted), None)
    return send if codec is None else _Compressed(send, codec)


def _accepted_encodings(header: str) -> set[str]:
    """Give the names of encodings in a header, without those of weight 0."""
    parts = [part.partition(";") for part in header.lower().replace(" ", "").split(",")]
    return {name for name, _, weight in parts if not weight or weight.strip("q=0.")}


class _Compressed:
    """A `send` that holds the head of a response back until its body tells whether it is in one piece and large.

    A response of another type, such as a stream of events, passes at once.
    """

    def __init__(self, send: Send, codec: str) -> None:
        self._send, self._codec = send, codec
        self._start: HTTPResponseStartEvent | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_compressible(message):
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


def _is_compressible(start: HTTPResponseStartEvent) -> bool:
    headers = MutableScopeHeaders.from_message(start)
    kind = headers.get("content-type", "").partition(";")[0]
    return kind.endswith(_KINDS) and "content-encoding" not in headers


# Reads a request's body before the request takes a place in its limiter.


async def await_body(scope: HTTPScope, receive: Receive, limiter: Limiter) -> Receive:
    """Wait until the body is complete or too large or the client has left, and give a `receive` that replays it.

    An upload is not buffered, since its handler writes it to disk as it arrives; a request that only reads has no body.
    """
    if limiter is Limiter.uploads or scope["method"] in SAFE_METHODS:
        return receive
    handler = scope["route_handler"]
    assert isinstance(handler, HTTPRouteHandler), "no route is of another kind"
    limit = handler.resolve_request_max_body_size()
    return replay_messages(await read_messages(receive, limit), receive)


async def read_messages(receive: Receive, limit: int | None) -> deque[HTTPReceiveMessage]:
    """Read messages until the body is complete or larger than `limit`, or the client has left."""
    messages: deque[HTTPReceiveMessage] = deque()
    size, more = 0, True
    while more:
        message: HTTPReceiveMessage = await receive()  # type: ignore[assignment]
        messages.append(message)
        more = message["type"] == "http.request" and message.get("more_body", False)
        size += len(message["body"]) if message["type"] == "http.request" else 0
        more = more and (limit is None or size <= limit)
    return messages


def replay_messages(messages: deque[HTTPReceiveMessage], receive: Receive) -> Receive:
    """Give a `receive` that gives these messages first, then those of the given one."""

    async def receiving() -> HTTPReceiveMessage:
        return messages.popleft() if messages else await receive()  # type: ignore[return-value]

    return receiving
