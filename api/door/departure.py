"""Notices that a client has disconnected, so that decoding for it stops at the next token and frees its place.

An ASGI server reports a disconnect to whoever calls `receive` after the body. Litestar calls it only while it
streams, so a task here calls it once the body is complete, and passes the disconnect on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from colmlm.api.door.requests import Asked

if TYPE_CHECKING:
    from litestar.types import HTTPReceiveMessage, Receive


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
