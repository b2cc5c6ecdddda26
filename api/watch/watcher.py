"""Counts, times and logs every request."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colmlm.api.door.auth import PROBES
from colmlm.api.door.drain import Drain
from colmlm.api.door.requests import Asked, method_of, route_of, status_of
from colmlm.api.watch.metrics import Metrics
from colmlm.api.watch.tracing import Tracing

if TYPE_CHECKING:
    from litestar.types import HTTPScope

    from colmlm.kb.access.tokens import TokenRecord


_log = logging.getLogger("colmlm.request")


@dataclass(frozen=True, slots=True)
class Watch:
    """The wrapper around each request of one server."""

    metrics: Metrics
    drain: Drain
    tracing: Tracing | None = None

    @contextmanager
    def running(self, scope: HTTPScope, request: Asked) -> Iterator[None]:
        """Measures a request, from before authentication until its response is sent."""
        started = time.perf_counter()
        self.drain.num_running += 1
        self.metrics.in_progress.inc()
        try:
            with self.tracing.request(scope, request) if self.tracing else nullcontext():
                try:
                    yield
                finally:
                    self._done(scope, request, time.perf_counter() - started)
        finally:
            self.metrics.in_progress.dec()
            self.drain.num_running -= 1

    def _done(self, scope: HTTPScope, request: Asked, took: float) -> None:
        method, route = method_of(scope), route_of(scope)
        status = status_of(request)
        self.metrics.answered(method, route, status, took)
        token: TokenRecord | None = scope.get("user")
        _log.log(
            logging.DEBUG if scope["path"] in PROBES else logging.INFO,
            "request",
            extra={
                "request_id": request.request_id,
                "client_request_id": request.client_request_id,
                "actor": token.name if token else None,
                "method": method,
                "route": route,
                "status": status,
                "ms": round(1000 * took, 2),
            },
        )
