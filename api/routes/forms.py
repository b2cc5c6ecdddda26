"""The forms beside JSON in which a route gives what it has, where a request asks for one by `Accept`."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response

JSON = "application/json"


def wanted(request: Request[Any, Any, Any], *others: str) -> str:
    """Gives the media type that a request likes best, of JSON and these others; JSON where it names none of them."""
    return request.accept.best_match([JSON, *others]) or JSON


def is_named(request: Request[Any, Any, Any], media_type: str) -> bool:
    """Says whether `Accept` names this type itself, whatever else it names."""
    return any(named.partition(";")[0].strip() == media_type for named in request.accept)


def written(value: Any, media_type: str = JSON, **headers: str) -> Response[Any]:
    """Gives a response of this type, and tells caches that another request may get another."""
    return Response(msgspec.json.encode(value), media_type=media_type, headers={"vary": "accept", **headers})
