"""Give every request an id, which its response, its log lines and the changes it makes all name.

The server makes the id. A caller's own id is kept beside it, so that nobody can pass a request off as another.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from litestar.datastructures import Headers
from litestar.types import HTTPScope

from colmlm.kb.access.records import TokenRecord
from colmlm.kb.principal import Origin, origin

HEADER = "x-request-id"
CLIENT_HEADER = "x-client-request-id"
_BROKEN_OFF = 499  # no status was sent: the client had left, or the server was told to end at once
UNROUTED = "unrouted"  # no route was reached: anybody may invent a path, so it is no label
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# Short, since the change log keeps it for good: it has room for an id, not for a text.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(slots=True)
class RequestState:
    """A request under way. `refusal` names the error that refused it, and `status` is the response's.

    A replay gives the response of an earlier request and does nothing. `has_left` becomes true when the client closes
    its connection before it has the response.
    """

    request_id: str
    client_request_id: str | None = None
    refusal: str | None = None
    status: int | None = None
    is_replay: bool = False
    has_left: bool = False


_asked: ContextVar[RequestState | None] = ContextVar("asked", default=None)


@contextmanager
def begin_request(headers: Headers) -> Iterator[RequestState]:
    """Make a request with a new id the current one of this context. The caller's id is kept if it is well-formed."""
    given = headers.get(HEADER, "")
    request = RequestState(secrets.token_hex(8), given if _ID.fullmatch(given) else None)
    as_asked, as_origin = _asked.set(request), origin.set(None)
    try:
        yield request
    finally:
        _asked.reset(as_asked)
        origin.reset(as_origin)


def set_principal(request: RequestState, token: TokenRecord) -> None:
    """Make this request's token the principal of the changes that the request makes."""
    origin.set(Origin(token.principal, request.request_id, request.client_request_id))


def id_headers(request: RequestState) -> dict[str, str]:
    """Give the response headers with the request's ids."""
    named = {HEADER: request.request_id}
    return named | ({CLIENT_HEADER: request.client_request_id} if request.client_request_id else {})


def current() -> RequestState | None:
    """Give the current request of this context, or None outside of any request."""
    return _asked.get()


def status_of(request: RequestState) -> int:
    return _BROKEN_OFF if request.status is None else request.status


def route_of(scope: HTTPScope) -> str:
    """Give the path template of the matched route, such as `/v1/facts/{fact_id}`."""
    return str(scope.get("path_template") or UNROUTED)


def method_of(scope: HTTPScope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"
