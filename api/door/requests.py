"""Requests as they go by: each has an id, which its answer, its log lines and the changes it makes all name.

The id is the server's own: what a caller names its request is kept beside it, and can't pass for another's.
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

from colmlm.kb.access.api_keys import ApiKeyRecord
from colmlm.kb.log.origin import Origin, origin

HEADER = "x-request-id"
CLIENT_HEADER = "x-client-request-id"
_BROKEN_OFF = 499  # no status was sent: the client had gone, or the server was told to end at once
_UNROUTED = "unrouted"  # refused by the gate, or no such route: a path is no label, anybody may make one up
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# Narrow, since it is kept in the change log for good: room for an id, not for a text.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(slots=True)
class Asked:
    """A request under way. `refusal` names what it was refused with, once it is; `status` is that of its answer.

    A replay gives the answer to an earlier one and does nothing. `has_left` turns true when the client closes its
    connection before it has the answer.
    """

    request_id: str
    client_request_id: str | None = None
    refusal: str | None = None
    status: int | None = None
    is_replay: bool = False
    has_left: bool = False


_asked: ContextVar[Asked | None] = ContextVar("asked", default=None)


@contextmanager
def asked(headers: Headers) -> Iterator[Asked]:
    """The request of this context, under an id of the server's own; the caller's is kept where it is one."""
    given = headers.get(HEADER, "")
    request = Asked(secrets.token_hex(8), given if _ID.fullmatch(given) else None)
    as_asked, as_origin = _asked.set(request), origin.set(None)
    try:
        yield request
    finally:
        _asked.reset(as_asked)
        origin.reset(as_origin)


def admitted(request: Asked, key: ApiKeyRecord) -> None:
    """Let what this request edits name the key that asks."""
    origin.set(Origin(key.principal, request.request_id, request.client_request_id))


def said(request: Asked) -> dict[str, str]:
    """The headers that name the request in its answer."""
    named = {HEADER: request.request_id}
    return named | ({CLIENT_HEADER: request.client_request_id} if request.client_request_id else {})


def current() -> Asked | None:
    """The request this runs in; None outside of any."""
    return _asked.get()


def status_of(request: Asked) -> int:
    return _BROKEN_OFF if request.status is None else request.status


def route_of(scope: HTTPScope) -> str:
    """The template of the route that was reached, as in `/v1/facts/{fact_id}`."""
    return str(scope.get("path_template") or _UNROUTED)


def method_of(scope: HTTPScope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"
