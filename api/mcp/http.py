"""Serves MCP over streamable HTTP, to who sends a token with each request.

Every request stands alone: the caller is found by its own token, so that a token that was revoked stops at once, and no
session can be taken over. Host and Origin must name the address that is served, which keeps out pages of other sites
whose name resolves to this machine (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from litestar.datastructures import Headers
from litestar.types import Receive, Send
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from colmlm.api.errors import NotSignedIn, refusal
from colmlm.api.mcp.caller import Caller
from colmlm.api.middleware.auth import bearer
from colmlm.api.middleware.connections import limited_protocol
from colmlm.api.wire.requests import LOOPBACK

Admit = Callable[[str], Caller | None]

PATH = "/mcp"
CUT_OFF_SECONDS = 30
_CALLER = "colmlm.caller"


def caller_of(context: ServerRequestContext[Any, Any]) -> Caller:
    """Gives the caller of a request that the door let in."""
    assert context.request is not None
    found: Caller = context.request.scope[_CALLER]
    return found


def serve(server: MCPServer, listener: socket.socket, admit: Admit) -> None:
    """Serves at a socket until a signal comes, to callers whose token `admit` knows."""
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        transport_security=_names_of(listener.getsockname()[1]),
    )
    config = uvicorn.Config(
        _Door(app, admit),
        log_config=None,
        access_log=False,
        server_header=False,
        http=limited_protocol(),
        ws="none",
        timeout_graceful_shutdown=CUT_OFF_SECONDS,
    )
    _Server(config).run(sockets=[listener])


def _names_of(port: int) -> TransportSecuritySettings:
    """Gives the names under which this machine alone reaches the port."""
    names = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in LOOPBACK]
    return TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
    )


class _Server(uvicorn.Server):
    """A server whose work a signal ends: it answers what runs, and does not raise the signal again as uvicorn does."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


class _Door:
    """Lets requests in whose token is known, with their caller; others are refused with a problem document."""

    def __init__(self, app: Any, admit: Admit) -> None:
        self._app, self._admit = app, admit

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                secret = bearer(Headers.from_scope(scope))  # type: ignore[arg-type]
                caller = await asyncio.to_thread(self._admit, secret) if secret else None
                if caller is None:
                    raise NotSignedIn
            except Exception as error:  # noqa: BLE001  # also where the base is out of reach
                await refusal(error)(scope, receive, send)  # type: ignore[arg-type]
                return
            scope = {**scope, _CALLER: caller}
        await self._app(scope, receive, send)
