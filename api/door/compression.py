"""Compresses large responses to reads, with Zstandard or gzip, as the client accepts.

The length of a compressed response tells who watches the connection whether what was sent recurs in what is secret
there (BREACH). So only responses to GET with a bearer token are compressed: no site can make a browser send one, as it
can a cookie, and what POST sends is not in them. Streams are sent as they come.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import TYPE_CHECKING

from litestar.concurrency import sync_to_thread
from litestar.datastructures import Headers, MutableScopeHeaders

from colmlm.api.door.auth import bearer

if TYPE_CHECKING:
    from litestar.types import HTTPResponseStartEvent, HTTPScope, Message, Send

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
