"""Requests as they go by: each has an id, which its answer, its log lines and the changes it makes all name."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from litestar.datastructures import Headers
from litestar.types import HTTPScope

from kb.origin import Origin, origin

HEADER = "x-request-id"
_BROKEN_OFF = 499  # no status was sent: the client had gone, or the server was told to end at once
_UNROUTED = "unrouted"  # refused by the gate, or no such route: a path is no label, anybody may make one up
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# Narrow, since it is kept in the change log for good: room for an id, not for a text.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(slots=True)
class Asked:
    """A request under way. `refusal` names what it was refused with, once it is; `status` is that of its answer.

    A replay gives the answer to an earlier one and does nothing.
    """

    request_id: str
    refusal: str | None = None
    status: int | None = None
    is_replay: bool = False


_asked: ContextVar[Asked | None] = ContextVar("asked", default=None)


@contextmanager
def asked(headers: Headers) -> Iterator[Asked]:
    """The request of this context, under the id the caller gave it, or a new one where that is none."""
    given = headers.get(HEADER, "")
    request = Asked(given if _ID.fullmatch(given) else secrets.token_hex(8))
    as_asked, as_origin = _asked.set(request), origin.set(Origin(request.request_id))
    try:
        yield request
    finally:
        _asked.reset(as_asked)
        origin.reset(as_origin)


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
