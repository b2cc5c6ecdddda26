"""The application that runs the same checks around every request, also one that no route matches.

Before routing it gives the request an id and the present name of its path, checks the host name, refuses it if the
server is draining, answers a CORS preflight, authenticates the token and counts it against the token's rate limit.
Afterwards it adds the security headers to the response, compresses it where that is safe, and writes to the journal who
was denied and who edited. A HEAD is taken for the GET whose head it asks for.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from sqlalchemy.exc import SQLAlchemyError

from colmlm.api import errors
from colmlm.api.console import pages, session
from colmlm.api.door import auth, requests, rights
from colmlm.api.door.arrival import arrived
from colmlm.api.door.compression import compressing
from colmlm.api.door.cors import Cors, cors
from colmlm.api.door.departure import noticed
from colmlm.api.door.heads import allowing_head, as_get
from colmlm.api.door.lanes import Lane, Lanes
from colmlm.api.door.limits import Clock, RateLimits, own_rates
from colmlm.api.door.local_token import LocalToken
from colmlm.api.door.renamed import under_its_present_name
from colmlm.api.openai import errors as openai_errors
from colmlm.api.ports import Ports
from colmlm.api.routes import vectors
from colmlm.api.routes.short_way import ShortWay
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.journal import Journal
from colmlm.api.watch.watcher import Watch
from colmlm.api.wire.loopback import LOOPBACK
from colmlm.kb.errors import KBError
from colmlm.kb.service import KnowledgeBase

if TYPE_CHECKING:
    from litestar import Litestar
    from litestar.types import (
        ASGIApp,
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
                vectors.route(scope)
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
        lane = rights.lane_of(scope)
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
