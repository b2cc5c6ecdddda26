"""Lets web pages of other origins call the API with a token (CORS). Off unless the settings name origins.

Cookies give no access here: a browser does not send them from another site, and the gate accepts a write that relies
on a cookie only from this server's own origin. So no response allows credentials.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from litestar.datastructures import Headers
from litestar.response.base import ASGIResponse

METHODS = "DELETE, GET, HEAD, PATCH, POST, PUT"
SENT = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-ID"
EXPOSED = "Allow, Deprecation, Idempotency-Replayed, Link, Retry-After, X-Request-ID"


@dataclass(frozen=True, slots=True)
class Cors:
    """The allowed origins, as browsers name them: scheme, host, and the port if it is not the scheme's default."""

    origins: frozenset[str]

    def headers(self, request: Headers) -> dict[str, str]:
        """Gives the CORS headers of the response to this request.

        They depend on the origin, which `Vary` tells caches.
        """
        if not self.origins:
            return {}
        origin = request.get("origin", "")
        allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED}
        return {"vary": "Origin", **(allowed if origin in self.origins else {})}

    def preflight(self, method: str, request: Headers) -> ASGIResponse | None:
        """Gives the response to a preflight of an allowed origin, which carries no key; None for any other request."""
        is_preflight = method == "OPTIONS" and "access-control-request-method" in request
        if not is_preflight or request.get("origin") not in self.origins:
            return None
        allowed = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": SENT,
            "access-control-max-age": "600",
        }
        return ASGIResponse(status_code=204, headers=allowed)


def cors(origins: Iterable[str]) -> Cors:
    return Cors(frozenset(origins))
