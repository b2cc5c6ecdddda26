"""Reads a request's body before the request takes a place in its lane.

A client that sends a body slowly, or never ends it, then takes no place from others, with or without a token.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from litestar.handlers import HTTPRouteHandler

from colmlm.api.door.auth import SAFE_METHODS
from colmlm.api.door.lanes import Lane

if TYPE_CHECKING:
    from litestar.types import HTTPReceiveMessage, HTTPScope, Receive


async def arrived(scope: HTTPScope, receive: Receive, lane: Lane) -> Receive:
    """Waits until the body is complete or too large or the client has left, and gives a `receive` that replays it.

    An upload is not buffered, since its handler writes it to disk as it arrives; a request that only reads has no body.
    """
    if lane is Lane.uploads or scope["method"] in SAFE_METHODS:
        return receive
    handler = scope["route_handler"]
    assert isinstance(handler, HTTPRouteHandler), "no route is of another kind"
    limit = handler.resolve_request_max_body_size()
    return replayed(await read(receive, limit), receive)


async def read(receive: Receive, limit: int | None) -> deque[HTTPReceiveMessage]:
    """Reads messages until the body is complete or larger than `limit`, or the client has left."""
    messages: deque[HTTPReceiveMessage] = deque()
    size, more = 0, True
    while more:
        message: HTTPReceiveMessage = await receive()  # type: ignore[assignment]
        messages.append(message)
        more = message["type"] == "http.request" and message.get("more_body", False)
        size += len(message["body"]) if message["type"] == "http.request" else 0
        more = more and (limit is None or size <= limit)
    return messages


def replayed(messages: deque[HTTPReceiveMessage], receive: Receive) -> Receive:
    """Gives a `receive` that gives these messages first."""

    async def receiving() -> HTTPReceiveMessage:
        return messages.popleft() if messages else await receive()  # type: ignore[return-value]

    return receiving
