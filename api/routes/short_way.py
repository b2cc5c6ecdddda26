"""The short way of the commonest request, a lookup of vectors by key: it is answered without the router.

A decoder makes such a request for each word that it looks up, and beside that lookup routing would be most of its
cost. Whatever is not of this kind, or is refused, takes the way of all others with what was read of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.door.arrival import read, replayed
from colmlm.api.door.rights import Lane, Right
from colmlm.api.ports import Ports
from colmlm.api.routes.lookups import answered, key_lookup
from colmlm.api.wire.requests import MAX_BODY_BYTES, LookupRequest
from colmlm.api.wire.vectors import LOOKUPS
from colmlm.kb.errors import KBError

if TYPE_CHECKING:
    from litestar.types import HTTPReceiveMessage, HTTPScope, Receive, Send

    from colmlm.kb.access.records import TokenRecord

_JSON = b"application/json"
_LENGTH = b"content-length"
_decoder = msgspec.json.Decoder(LookupRequest)
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class ShortWay:
    """Answers lookups of vectors by key with the ports of the routes."""

    ports: Ports

    async def take(self, scope: HTTPScope, receive: Receive, send: Send) -> Receive | None:
        """Answers an admitted request of this kind. For any other gives the `receive` to go on with."""
        if not _is_open_to(scope):
            return receive
        messages = await read(receive, MAX_BODY_BYTES)
        if (said := await self._answer(messages)) is None:
            return replayed(messages, receive)
        scope["path_template"] = LOOKUPS  # what metrics and logs name it by
        headers = [(b"content-type", _JSON), (_LENGTH, str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said, "more_body": False})
        return None

    async def _answer(self, messages: deque[HTTPReceiveMessage]) -> bytes | None:
        body = b"".join(one["body"] for one in messages if one["type"] == "http.request")
        if messages[-1]["type"] != "http.request" or len(body) > MAX_BODY_BYTES:
            return None
        try:
            if (asked := key_lookup(_decoder.decode(body))) is None:
                return None
            with self.ports.lanes.place(Lane.lookups):
                found = await self.ports.find_by_key(asked)
        except (msgspec.MsgspecError, KBError, SQLAlchemyError):  # told by who is asked next
            return None
        return _encoder.encode(answered(asked.checkpoint_id, [], found))


def _is_open_to(scope: HTTPScope) -> bool:
    if scope["path"] != LOOKUPS or scope["method"] != "POST" or scope["query_string"]:
        return False
    token: TokenRecord | None = scope.get("user")
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    return token is not None and token.may(Right.lookup) and kinds == [_JSON]
