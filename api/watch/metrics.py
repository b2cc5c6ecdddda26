"""The metrics that Prometheus scrapes: counters and histograms of this process, and gauges read at each scrape.

Labels have few values: parts of a lookup, outcomes, kinds of changes, route templates; never a fact, a text or a token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.middleware.limiters import Limiters
from colmlm.api.request_context import UNROUTED, method_of, route_of, status_of
from colmlm.api.supervision import SharedState
from colmlm.kb.errors import KBError, SettingsError
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.tickets import OwnWorker, WorkerState, report_no_worker
from colmlm.kb.log.audit import KINDS
from colmlm.kb.lookup.lookups import IndexStanding
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.engines import WatchedPool
from colmlm.kb.webhooks.records import Webhook

if TYPE_CHECKING:
    from litestar.types import HTTPScope
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from colmlm.api.request_context import RequestState


_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

# The parts that are timed: name, description and buckets of each histogram.
_PARTS = {
    "lookup": ("From the queries of a lookup to its answers", _SHORT),
    "search": ("One search of the index", _SHORT),
    "select": ("The statement that decides which candidates are live", _SHORT),
    "decode": ("One output, from its prompt to its stored trace", _LONG),
    "first_token": ("From a prompt to the first piece of a streamed output", _LONG),
}


class Metrics:
    """The metrics of one process: a `kb.lookup.records.Observer` of lookups, and the counters of the HTTP layer."""

    def __init__(
        self, kb: KnowledgeBase, worker: OwnWorker = report_no_worker, shared: SharedState | None = None
    ) -> None:
        """Register the metrics. With `shared`, counters and histograms are those of all its processes together."""
        self.registry = CollectorRegistry()
        own = self.registry if shared is None else None
        if shared is not None:
            MultiProcessCollector(self.registry, str(shared.metrics_folder))  # type: ignore[no-untyped-call]
        self._seconds = {
            part: Histogram(f"colmlm_{part}_seconds", said, buckets=buckets, registry=own)
            for part, (said, buckets) in _PARTS.items()
        }
        self._lookups = Counter("colmlm_lookups", "Queries answered, by outcome", ["outcome"], registry=own)
        for outcome in ("hit", "no_match", "abstained"):
            self._lookups.labels(outcome)  # at 0 from the start, so that a rate has a first value
        self._requests = Counter(
            "colmlm_http_requests",
            "HTTP requests, by route and status",
            ["method", "route", "status"],
            registry=own,
        )
        self._request_seconds = Histogram(
            "colmlm_http_request_seconds",
            "From a request to the end of its answer",
            ["route"],
            buckets=_LONG,
            registry=own,
        )
        self.in_progress = Gauge(
            "colmlm_http_requests_in_progress",
            "HTTP requests being answered",
            registry=own,
            multiprocess_mode="livesum",
        )
        self.registry.register(StandingGauges(kb, worker, shared.counted_since if shared else None))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def watch(self, limiters: Limiters) -> None:
        """Add the gauges of these limiters."""
        self.registry.register(LimiterGauges(limiters))

    def timed(self, part: str) -> AbstractContextManager[object]:
        return self._seconds[part].time()

    def record_duration(self, part: str, seconds: float) -> None:
        """Record a duration that the caller measured."""
        self._seconds[part].observe(seconds)

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        for lookup in lookups:
            self._lookups.labels(outcome_of(lookup)).inc()

    def count_answer(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def count_incomplete(self, status: int, seconds: float) -> None:
        """Count a request that was refused before it was complete, so that nothing of it is known."""
        self.count_answer("other", UNROUTED, status, seconds)

    def text(self) -> bytes:
        """Give all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def outcome_of(lookup: Lookup) -> str:
    if lookup.hits:
        return "hit"
    return "no_match" if lookup.abstained is None else "abstained"


# Gauges that are read at each scrape: the index, its snapshot, the connections, the change log, jobs and
# limiters.


class StandingGauges(Collector):
    """Gauges of the knowledge base's state. Without the database, it gives `database_up`, connections and worker."""

    def __init__(
        self,
        kb: KnowledgeBase,
        worker: OwnWorker = report_no_worker,
        since: Callable[[int], int] | None = None,
    ) -> None:
        """Make gauges that count the changes after `since(head)` (None: after the head of the first scrape)."""
        self._kb, self._worker, self._since = kb, worker, since
        self._asking = threading.Lock()
        # These counters exist at 0 from the start, so that a rate can be taken of their first change. Other kinds are
        # added when they first occur.
        self._changes = dict.fromkeys(KINDS, 0)
        self._counted_seq: int | None = None

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise registering would query the database

    def collect(self) -> Iterator[Metric]:
        yield from _own_worker(self._worker())
        yield _connections(self._kb.pools)
        try:
            with self._asking:
                found = self._kb.lookups.standing()
                changes = self._changes_by_kind(found.head_seq)
                jobs, workers = self._jobs(), self._workers()
                webhooks = list(_webhooks(self._kb.webhooks.all(), found.head_seq))
        except (SQLAlchemyError, KBError):
            yield _gauge("database_up", "Whether the database answers", 0)
            return
        yield _gauge("database_up", "Whether the database answers", 1)
        yield from _index(found)
        yield changes
        yield jobs
        yield workers
        yield from webhooks

    def _changes_by_kind(self, head: int) -> Metric:
        """Count the changes of all processes since the first scrape of this one.

        Every server gives the same increments.
        """
        if (since := self._counted_seq) is None:
            since = head if self._since is None else self._since(head)
        for kind, count in self._kb.log.counts(since, head).items():
            self._changes[kind] = self._changes.get(kind, 0) + count
        self._counted_seq = head
        family = CounterMetricFamily(
            "colmlm_changes",
            "Changes in the log since this process was first asked, by kind",
            labels=["kind"],
        )
        for kind, count in sorted(self._changes.items()):
            family.add_metric([kind], count)
        return family

    def _jobs(self) -> Metric:
        """Count jobs by kind and state. Every server gives the same numbers, since they share the table."""
        family = GaugeMetricFamily("colmlm_jobs", "Jobs, by kind and state", labels=["kind", "state"])
        for (kind, state), count in Jobs(self._kb).counts_by_kind().items():
            family.add_metric([kind, state], count)
        return family

    def _workers(self) -> Metric:
        return _gauge("workers", "Workers that were heard of lately", Jobs(self._kb).num_workers())


def _webhooks(found: Sequence[Webhook], head: int) -> Iterator[Metric]:
    """Give gauges of webhooks by id, as their addresses may be secrets. Every server gives the same numbers."""
    state = GaugeMetricFamily("colmlm_webhook_state", "The state of a webhook", labels=["webhook", "state"])
    behind = GaugeMetricFamily("colmlm_webhook_lag_changes", "Changes ahead of a webhook", labels=["webhook"])
    failures = GaugeMetricFamily(
        "colmlm_webhook_failures", "Attempts in a row that its receiver did not take", labels=["webhook"]
    )
    for webhook in found:
        name = str(webhook.webhook_id)
        state.add_metric([name, webhook.state], 1)
        behind.add_metric([name], head - webhook.delivered_seq)
        failures.add_metric([name], webhook.attempts)
    yield from (state, behind, failures)


def _own_worker(state: WorkerState | None) -> Iterator[Metric]:
    if state is None:
        return
    yield _gauge("worker_up", "Whether the worker that this server runs is there", int(state.running))
    restarts = CounterMetricFamily("colmlm_worker_restarts", "Ends of that worker that nobody asked for")
    restarts.add_metric([], state.restarts)
    yield restarts


class LimiterGauges(Collector):
    """Gauges of the limiters: how many requests are in each, and how many it refused."""

    def __init__(self, limiters: Limiters) -> None:
        self._limiters = limiters

    def collect(self) -> Iterator[Metric]:
        taken = GaugeMetricFamily("colmlm_limiter_slots_taken", "Requests in a limiter", labels=["limiter"])
        refused = CounterMetricFamily(
            "colmlm_limiter_refused", "Requests a limiter had no slot for", labels=["limiter"]
        )
        for limiter, number in self._limiters.slots_taken().items():
            taken.add_metric([limiter.name], number)
        for limiter, number in self._limiters.requests_refused().items():
            refused.add_metric([limiter.name], number)
        yield taken
        yield refused


def _index(found: IndexStanding) -> Iterator[Metric]:
    yield _gauge("index_open", "Whether this process holds an index", int(found.applied_seq is not None))
    if found.lag is not None:
        yield _gauge("index_lag_changes", "Changes not yet in this process's index", found.lag)
    if found.snapshot_at is not None:
        age = (datetime.now(UTC) - found.snapshot_at).total_seconds()
        yield _gauge("snapshot_age_seconds", "Age of the index's snapshot on disk", max(0.0, age))
    if (memory := found.memory) is not None:
        yield _gauge("index_capacity_keys", "Keys that an index of torch has room for", memory.capacity)
        taken = GaugeMetricFamily("colmlm_index_bytes", "Memory of an index of torch", labels=["where"])
        taken.add_metric(["device"], memory.device_bytes)
        taken.add_metric(["main memory"], memory.main_bytes)
        yield taken


def _connections(engines: dict[str, Engine]) -> Metric:
    family = GaugeMetricFamily(
        "colmlm_database_connections", "Connections to the database, and who waits", labels=["pool", "state"]
    )
    for name, engine in engines.items():
        pool = engine.pool
        assert isinstance(pool, WatchedPool), "kb.database makes the engines"
        family.add_metric([name, "in_use"], pool.checkedout())
        family.add_metric([name, "idle"], pool.checkedin())
        family.add_metric([name, "waiting"], pool.num_waiting)
    return family


def _gauge(name: str, said: str, value: float) -> Metric:
    return GaugeMetricFamily(f"colmlm_{name}", said, value=value)


# OpenTelemetry spans: one for each request, and within it for its lookups, their search and select, and decoding.

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
        """Start a span that is current only inside `resume_span`, since a stream's steps run in several threads."""
        return self._tracer.start_span(name)

    @contextmanager
    def resume_span(self, span: Span) -> Iterator[None]:
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
        cause = "OpenTelemetry is not installed. Run: pip install 'colmlm[otel]'"
        raise SettingsError("OTEL_TRACES_EXPORTER", cause) from error
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
