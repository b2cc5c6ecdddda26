"""Lets paths that were renamed answer under their former name too, until 1.0.

A request for a former path is given the present one before anything looks at it. So both spellings have one route, and
with it the same rights, limits, lanes and idempotency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from litestar.utils import normalize_path

if TYPE_CHECKING:
    from litestar.types import HTTPScope

PRESENT = {"/v1/keys": "/v1/tokens", "/console/keys": "/console/tokens"}
DEPRECATED = "@1795392000"  # 2026-11-23, in the form of RFC 9745


def under_its_present_name(scope: HTTPScope) -> dict[str, str]:
    """Gives the request the present path, and the response headers that say so; none where the path is present.

    A path is read as the router reads it, for which several slashes are one.
    """
    path = normalize_path(scope["path"])
    for former, present in PRESENT.items():
        if path == former or path.startswith(f"{former}/"):
            scope["path"] = present + path.removeprefix(former)
            scope["raw_path"] = quote(scope["path"]).encode()
            return {"deprecation": DEPRECATED, "link": f'<{present}>; rel="successor-version"'}
    return {}
