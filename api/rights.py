"""What a route needs of the key that asks: `opt=needs(Right.read)`. One that names no right is the admin's alone."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from api.errors import RightMissing
from kb.access import ApiKeyRecord, Right

__all__ = ["Right", "needs", "require_right", "right_of"]

_OPT = "right"


def needs(right: Right) -> dict[str, Right]:
    """For a route's or a router's `opt`."""
    return {_OPT: right}


def right_of(handler: BaseRouteHandler) -> Right:
    """What this route needs; the highest where it does not say."""
    needed: Right = handler.opt.get(_OPT, Right.admin)
    return needed


def require_right(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Litestar's guard on every route: the key's role must have the right in the route's `opt`."""
    key: ApiKeyRecord | None = connection.scope["user"]
    if key is None:  # the sign-in, which `Gate.admit` lets pass
        return
    needed = right_of(handler)
    if not key.may(needed):
        raise RightMissing(key.role, needed)
