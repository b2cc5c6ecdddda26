"""Answers HEAD wherever GET is answered: the same request, of whose response only the head is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from litestar.types import HTTPScope, Message, Send

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
