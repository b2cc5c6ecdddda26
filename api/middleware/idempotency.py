"""`Idempotency-Key`: an edit sent twice is carried out once, and gets the same response both times.

Every route that edits heeds it. The idempotency key belongs to the token that sent it, and stands for one method,
path and body. A request that was refused changed nothing and leaves the name free. `kb.access.access` says what
happens in a crash.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from litestar.concurrency import sync_to_thread
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.response.base import ASGIResponse

from colmlm.api import request_context
from colmlm.api.errors import bad_idempotency_key
from colmlm.api.middleware.auth import is_edit, right_of
from colmlm.api.middleware.gate import read_messages, replay_messages
from colmlm.api.middleware.limiters import Limiter, Limiters
from colmlm.api.wire import MAX_BODY_BYTES
from colmlm.kb.access.access import MAX_KEPT_BYTES, Access, KeptAnswer
from colmlm.kb.access.records import TokenRecord
from colmlm.kb.principal import Claim, origin

if TYPE_CHECKING:
    from litestar.types import ASGIApp, HTTPReceiveMessage, HTTPScope, Message, Receive, Scope, Send

HEADER = "idempotency-key"
REPLAYED = "idempotency-replayed"
MAX_LENGTH = 200

_OPT = "tells_secret"
TELLS_SECRET = {
    _OPT: True
}  # for a route's `opt`: its response is not stored, so a repetition does nothing and says so


class IdempotencyMiddleware:
    """ASGI middleware that answers a repeated edit with its first response, stored by the `access` in the state.

    It runs after routing and before the guards.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        name, token = Headers.from_scope(scope).get(HEADER), scope.get("user")
        if name is None or not is_edit(scope) or not _may_edit(token, scope):
            await self.app(scope, receive, send)
            return
        await self._once(scope, receive, send, _check_name(name), token)

    async def _once(
        self, scope: HTTPScope, receive: Receive, send: Send, name: str, token: TokenRecord
    ) -> None:
        messages = await read_messages(receive, MAX_BODY_BYTES)
        body = _whole_body(messages)
        access: Access = scope["state"]["access"]
        found = await sync_to_thread(access.claim, token.key_id, name, _request_bytes(scope, body))
        if isinstance(found, KeptAnswer):
            if (request := request_context.current()) is not None:
                request.is_replay = True
            headers = {REPLAYED: "true", "content-type": found.media_type}
            answer = ASGIResponse(body=found.body or b"", status_code=found.status, headers=headers)
            await answer(scope, receive, send)
            return
        secret = _OPT in scope["route_handler"].opt
        recorded = _RecordingSend(
            send, keep=not secret, settle=partial(_settle, scope["state"]["limiters"], access, found)
        )
        before = origin.get()
        assert before is not None, "a request of a token has an origin"
        held = origin.set(replace(before, claim=found))
        try:
            await self.app(scope, replay_messages(messages, receive), recorded)
        finally:
            origin.reset(held)
        await recorded.store_response()


async def _settle(limiters: Limiters, access: Access, held: Claim, answer: KeptAnswer) -> None:
    # In another limiter than the edits, which may wait: a claim not settled in two minutes counts as a dead server's.
    await limiters.run(Limiter.records, access.settle, held, answer)


@dataclass(slots=True)
class _RecordingSend:
    """A `send` that also records the response, up to the size that is stored.

    The response is stored before its last part is sent, so that a client that repeats it at once gets the same.
    """

    send: Send
    keep: bool
    settle: Callable[[KeptAnswer], Awaitable[None]]
    is_settled: bool = False
    status: int = 500
    media_type: str = ""
    body: bytearray = field(default_factory=bytearray)

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            sent = {name.lower(): value for name, value in message["headers"]}
            self.media_type = sent.get(b"content-type", b"").decode("latin-1")
        elif message["type"] == "http.response.body" and len(self.body) <= MAX_KEPT_BYTES:
            self.body += message.get("body", b"")
        try:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await self.store_response()
        finally:
            await self.send(message)

    async def store_response(self) -> None:
        """Store the response as far as it was sent, once."""
        if not self.is_settled:
            self.is_settled = True
            await self.settle(
                KeptAnswer(self.status, self.media_type, bytes(self.body) if self.keep else None)
            )


def _may_edit(token: Any, scope: HTTPScope) -> bool:
    """Tell whether the token has the right that the route needs. Without it no idempotency key is claimed."""
    return isinstance(token, TokenRecord) and token.may(right_of(scope["route_handler"]))


def _check_name(name: str) -> str:
    if not name or len(name) > MAX_LENGTH or not name.isascii() or not name.isprintable():
        raise bad_idempotency_key(f"it must be 1 to {MAX_LENGTH} printable ASCII characters")
    return name


def _whole_body(messages: Sequence[HTTPReceiveMessage]) -> bytes:
    if messages[-1]["type"] != "http.request":  # the client disconnected within the body
        raise bad_idempotency_key("the body of the request is incomplete")
    body = b"".join(message["body"] for message in messages if message["type"] == "http.request")
    if len(body) > MAX_BODY_BYTES:
        raise bad_idempotency_key(f"such a request has at most {MAX_BODY_BYTES} bytes")
    return body


def _request_bytes(scope: HTTPScope, body: bytes) -> bytes:
    """Give the bytes by which two requests are compared: method, path, query string and body."""
    return b"\n".join((scope["method"].encode(), scope["path"].encode(), scope["query_string"], body))
