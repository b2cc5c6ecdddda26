"""OpenTelemetry spans: one for each request, and within it for its lookups, their search and select, and decoding.

Off unless the standard variables ask for it: OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT), or
OTEL_TRACES_EXPORTER=otlp or console. Spans carry names, numbers and route templates, no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from colmlm.api.request_context import method_of, route_of, status_of
from colmlm.kb.errors import SettingsError

if TYPE_CHECKING:
    from litestar.types import HTTPScope
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from colmlm.api.request_context import RequestState

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Tracing:
    """Make spans and export them in the background; `close` exports the rest."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("colmlm")

    def close(self) -> None:
        self._provider.shutdown()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        with self._tracer.start_as_current_span(name):
            yield

    def begin(self, name: str) -> Span:
        """Start a span that is current only inside `within`, since a stream's steps run in several threads."""
        return self._tracer.start_span(name)

    @contextmanager
    def within(self, span: Span) -> Iterator[None]:
        from opentelemetry.trace import use_span

        with use_span(span, end_on_exit=False):
            yield

    @contextmanager
    def request(self, scope: HTTPScope, request: RequestState) -> Iterator[None]:
        """Trace a request as one span, a child of the caller's span if the request names one."""
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        caller = TraceContextTextMapPropagator().extract(headers)
        with self._tracer.start_as_current_span("request", context=caller, kind=SpanKind.SERVER) as span:
            try:
                yield
            finally:
                method, route, status = method_of(scope), route_of(scope), status_of(request)
                span.update_name(f"{method} {route}")
                span.set_attribute("http.request.method", method)
                span.set_attribute("http.route", route)
                span.set_attribute("http.response.status_code", status)
                span.set_attribute("colmlm.request_id", request.request_id)
                if status >= 500:
                    span.set_status(Status(StatusCode.ERROR))


def tracing_from(env: Mapping[str, str]) -> Tracing | None:
    """Make the tracing that the variables in `env` ask for, or None. Raise `SettingsError`.

    The exporter, the sampler and the resource read their own OTEL_ variables.
    """
    if not _is_wanted(env):
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError("OTEL_TRACES_EXPORTER", "it needs: pip install 'colmlm[otel]'") from error
    name = {} if env.get("OTEL_SERVICE_NAME") else {"service.name": "colmlm"}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(_exporter(env)))
    return Tracing(provider)


def _is_wanted(env: Mapping[str, str]) -> bool:
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = env.get("OTEL_TRACES_EXPORTER")
    if exporter not in (None, "", "none", "otlp", "console"):
        raise SettingsError("OTEL_TRACES_EXPORTER", f"{exporter!r} is not one of otlp, console, none")
    return exporter in ("otlp", "console") or (
        exporter != "none" and any(env.get(endpoint) for endpoint in _ENDPOINTS)
    )


def _exporter(env: Mapping[str, str]) -> SpanExporter:
    if env.get("OTEL_TRACES_EXPORTER") == "console":
        import sys

        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
