"""The short way of the commonest request, a lookup of vectors by key: it is answered without the router.

A decoder makes such a request for each word that it looks up, and beside that lookup routing would be most of its
cost. Whatever is not of this kind, or is refused, takes the way of all others with what was read of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from litestar.datastructures import Headers
from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.door import requests
from colmlm.api.door.arrival import read, replayed
from colmlm.api.door.auth import Lane, bearer
from colmlm.api.ports import Ports
from colmlm.api.routes.lookups import answered, key_lookup
from colmlm.api.routes.sought import SecretLookup
from colmlm.api.wire.requests import LOOKUPS, LookupRequest
from colmlm.kb.errors import KBError

if TYPE_CHECKING:
    from litestar.types import HTTPReceiveMessage, HTTPScope, Receive, Send

# A server buffers as much of a body in any case. What is longer is read when its sender was admitted.
MAX_BYTES = 1 << 16
_JSON = "application/json"
_decoder = msgspec.json.Decoder(LookupRequest)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class ShortWay:
    """Answers lookups of vectors by key with the ports of the routes, and checks their tokens as it does."""

    ports: Ports

    async def take(
        self, scope: HTTPScope, headers: Headers, request: requests.Asked, receive: Receive, send: Send
    ) -> Receive | None:
        """Answers a request of this kind. For any other gives the `receive` to go on with.

        A request that it admits and cannot answer has its token as the scope's user.
        """
        secret = bearer(headers)
        if not secret or not _is_open_to(scope, headers):
            return receive
        messages = await read(receive, MAX_BYTES)
        said = await self._answer(scope, request, secret, messages)
        if said is None:
            return replayed(messages, receive)
        scope["path_template"] = LOOKUPS  # what metrics and logs name it by
        told = [(b"content-type", _JSON.encode()), (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": told})
        await send({"type": "http.response.body", "body": said, "more_body": False})
        return None

    async def _answer(
        self, scope: HTTPScope, request: requests.Asked, secret: str, messages: deque[HTTPReceiveMessage]
    ) -> bytes | None:
        if messages[-1]["type"] != "http.request":
            return None
        body = b"".join(one["body"] for one in messages if one["type"] == "http.request")
        try:
            if (asked := key_lookup(_decoder.decode(body))) is None:
                return None
            with self.ports.lanes.place(Lane.lookups):
                answer = await self.ports.key_lookups.ask(SecretLookup(asked, secret))
        except (msgspec.MsgspecError, KBError, SQLAlchemyError):  # told by who is asked next
            return None
        if answer.token is None:
            return None
        scope["user"] = answer.token
        requests.admitted(request, answer.token)
        if answer.found is None or isinstance(answer.found, KBError):
            return None
        return _encoder.encode(answered(asked.checkpoint_id, [], answer.found))


def _is_open_to(scope: HTTPScope, headers: Headers) -> bool:
    if scope["path"] != LOOKUPS or scope["method"] != "POST" or scope["query_string"]:
        return False
    length = headers.get("content-length", "")
    return (
        headers.getall("content-type", []) == [_JSON]
        and length.isascii()
        and length.isdigit()
        and int(length) <= MAX_BYTES
    )
