"""Declares which right a route needs, and its lane: `opt=needs(Right.read)`. Without a right it needs `Right.admin`.

The lane follows from the right and the method. A route names one only where it waits for something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from colmlm.api.door.lanes import Lane
from colmlm.api.errors import RightMissing
from colmlm.kb.access.tokens import Right, TokenRecord

if TYPE_CHECKING:
    from litestar.types import HTTPScope

__all__ = ["EDITING", "Lane", "Right", "is_edit", "lane_of", "needs", "require_right", "right_of"]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
EDITING = frozenset(Right) - {Right.lookup, Right.read}

_OPT, _LANE = "right", "lane"


def needs(right: Right, lane: Lane | None = None) -> dict[str, Any]:
    """Gives the `opt` of a route or router. Without `lane` the lane is that of lookups, of edits or of reads."""
    return {_OPT: right} if lane is None else {_OPT: right, _LANE: lane}


def right_of(handler: BaseRouteHandler) -> Right:
    """Gives the right that this route needs; the highest one where it declares none."""
    needed: Right = handler.opt.get(_OPT, Right.admin)
    return needed


def is_edit(scope: HTTPScope) -> bool:
    """Tells whether the request's route changes or starts something and needs more than a right to read."""
    handler = scope.get("route_handler")
    return handler is not None and scope["method"] not in SAFE_METHODS and right_of(handler) in EDITING


def lane_of(scope: HTTPScope) -> Lane:
    """Gives the lane of the matched route."""
    handler = scope["route_handler"]
    named: Lane | None = handler.opt.get(_LANE)
    if named is not None:
        return named
    if is_edit(scope):
        return Lane.edits
    return Lane.lookups if right_of(handler) is Right.lookup else Lane.reads


async def require_right(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Guards every route: raises `RightMissing` unless the token's role has the right in the route's `opt`."""
    token: TokenRecord | None = connection.scope["user"]
    if token is None:  # one of the open paths, which `Admission.admit` lets pass
        return
    needed = right_of(handler)
    if not token.may(needed):
        raise RightMissing(token.role, needed)
