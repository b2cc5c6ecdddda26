"""The metrics that Prometheus scrapes: counters and histograms of this process, and gauges read at each scrape.

Labels have few values: parts of a lookup, outcomes, kinds of changes, route templates; never a fact, a text or a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from colmlm.api.door.lanes import Lanes
from colmlm.api.door.requests import UNROUTED
from colmlm.api.supervision.shared import Shared
from colmlm.api.watch.gauges import LaneGauges, StandingGauges
from colmlm.kb.jobs.attendance import OwnWorker, no_worker
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.service import KnowledgeBase

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
    """The metrics of one process: an `kb.lookup.observing.Observer` of lookups, and the counters of the HTTP layer."""

    def __init__(
        self, kb: KnowledgeBase, worker: OwnWorker = no_worker, shared: Shared | None = None
    ) -> None:
        """With `shared`, counters and histograms are of all its processes together, the other metrics of this one."""
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

    def watch(self, lanes: Lanes) -> None:
        """Adds the gauges of these lanes."""
        self.registry.register(LaneGauges(lanes))

    def timed(self, part: str) -> AbstractContextManager[object]:
        return self._seconds[part].time()

    def took(self, part: str, seconds: float) -> None:
        """Records a duration that the caller measured."""
        self._seconds[part].observe(seconds)

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        for lookup in lookups:
            self._lookups.labels(outcome_of(lookup)).inc()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def incomplete(self, status: int, seconds: float) -> None:
        """Count a request that was refused before it was complete, so that nothing of it is known."""
        self.answered("other", UNROUTED, status, seconds)

    def text(self) -> bytes:
        """Gives all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def outcome_of(lookup: Lookup) -> str:
    if lookup.hits:
        return "hit"
    return "no_match" if lookup.abstained is None else "abstained"
