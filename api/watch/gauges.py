"""Gauges that are read at each scrape: the index, its snapshot, the connections, the change log, jobs and lanes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.door.lanes import Lanes
from colmlm.kb.errors import KBError
from colmlm.kb.jobs.attendance import OwnWorker, WorkerState, no_worker
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.log.audit import KINDS
from colmlm.kb.lookup.index_standing import IndexStanding
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.pool import WatchedPool
from colmlm.kb.webhooks.records import Webhook


class StandingGauges(Collector):
    """Gauges of the knowledge base's state. If the database does not answer, they say only that."""

    def __init__(
        self, kb: KnowledgeBase, worker: OwnWorker = no_worker, since: Callable[[int], int] | None = None
    ) -> None:
        """`since` gives the change that changes are counted from, of the head (None: the head at the first scrape)."""
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
        """Counts the changes of all processes since the first scrape of this one.

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
        """Counts jobs by kind and state. Every server gives the same numbers, since they share the table."""
        family = GaugeMetricFamily("colmlm_jobs", "Jobs, by kind and state", labels=["kind", "state"])
        for (kind, state), count in Jobs(self._kb).counts_by_kind().items():
            family.add_metric([kind, state], count)
        return family

    def _workers(self) -> Metric:
        return _gauge("workers", "Workers that were heard of lately", Jobs(self._kb).num_workers())


def _webhooks(found: Sequence[Webhook], head: int) -> Iterator[Metric]:
    """Gives gauges of webhooks by id, as their addresses may be secrets. Every server gives the same numbers."""
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


class LaneGauges(Collector):
    """Gauges of the lanes: how many requests are in each, and how many it refused."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def collect(self) -> Iterator[Metric]:
        taken = GaugeMetricFamily("colmlm_lane_places_taken", "Requests in a lane", labels=["lane"])
        refused = CounterMetricFamily(
            "colmlm_lane_refused", "Requests a lane had no place for", labels=["lane"]
        )
        for lane, number in self._lanes.taken().items():
            taken.add_metric([lane.name], number)
        for lane, number in self._lanes.refused().items():
            refused.add_metric([lane.name], number)
        yield taken
        yield refused


def _index(found: IndexStanding) -> Iterator[Metric]:
    yield _gauge("index_open", "Whether this process holds an index", int(found.applied_seq is not None))
    if found.lag is not None:
        yield _gauge("index_lag_changes", "Changes not yet in this process's index", found.lag)
    if found.snapshot_at is not None:
        age = (datetime.now(UTC) - found.snapshot_at).total_seconds()
        yield _gauge("snapshot_age_seconds", "Age of the index's snapshot on disk", max(0.0, age))


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
