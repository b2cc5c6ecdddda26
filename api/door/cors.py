"""Pages of other origins that may call the API with a key of their own. Off unless origins are named.

Cookies never count here: a browser does not send them from another site, and the gate takes writes that rely on one
from this server's own origin only. So no answer allows credentials.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from litestar.datastructures import Headers
from litestar.response.base import ASGIResponse

METHODS = "DELETE, GET, HEAD, PATCH, POST, PUT"
SENT = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-ID"
EXPOSED = "Allow, Idempotency-Replayed, Retry-After, X-Request-ID"


@dataclass(frozen=True, slots=True)
class Cors:
    """The origins that may ask, as browsers name them: scheme, host, port if it is not the scheme's own."""

    origins: frozenset[str]

    def headers(self, request: Headers) -> dict[str, str]:
        """What an answer to this request also says. It differs by origin, which caches must know."""
        if not self.origins:
            return {}
        origin = request.get("origin", "")
        allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED}
        return {"vary": "Origin", **(allowed if origin in self.origins else {})}

    def preflight(self, method: str, request: Headers) -> ASGIResponse | None:
        """The answer to a browser that asks whether it may ask, which it does without a key; None for any other."""
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
