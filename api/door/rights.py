"""What a route needs of the key that asks, and its lane: `opt=needs(Right.read)`. One without a right is the admin's.

A lane is named where the right and the method do not tell what the route waits for, so that none goes without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from colmlm.api.door.lanes import Lane
from colmlm.api.errors import RightMissing
from colmlm.kb.access.api_keys import ApiKeyRecord, Right

if TYPE_CHECKING:
    from litestar.types import HTTPScope

__all__ = ["EDITING", "Lane", "Right", "is_edit", "lane_of", "needs", "require_right", "right_of"]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
EDITING = frozenset(Right) - {Right.lookup, Right.read}

_OPT, _LANE = "right", "lane"


def needs(right: Right, lane: Lane | None = None) -> dict[str, Any]:
    """For a route's or a router's `opt`. Without a `lane` it is that of lookups, of edits or of reads."""
    return {_OPT: right} if lane is None else {_OPT: right, _LANE: lane}


def right_of(handler: BaseRouteHandler) -> Right:
    """What this route needs; the highest where it does not say."""
    needed: Right = handler.opt.get(_OPT, Right.admin)
    return needed


def is_edit(scope: HTTPScope) -> bool:
    """Whether the request reached a route that changes or starts something, for whoever may do more than read."""
    handler = scope.get("route_handler")
    return handler is not None and scope["method"] not in SAFE_METHODS and right_of(handler) in EDITING


def lane_of(scope: HTTPScope) -> Lane:
    """Where the work of the route that was reached is done."""
    handler = scope["route_handler"]
    named: Lane | None = handler.opt.get(_LANE)
    if named is not None:
        return named
    if is_edit(scope):
        return Lane.edits
    return Lane.lookups if right_of(handler) is Right.lookup else Lane.reads


async def require_right(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Litestar's guard on every route: the key's role must have the right in the route's `opt`."""
    key: ApiKeyRecord | None = connection.scope["user"]
    if key is None:  # the sign-in, which `Gate.admit` lets pass
        return
    needed = right_of(handler)
    if not key.may(needed):
        raise RightMissing(key.role, needed)
