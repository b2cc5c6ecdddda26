"""The parts that observe one server and end it: metrics, tracing, drain, and whether it is ready."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.loaded_models import LoadedModels
from colmlm.api.middleware.auth import PROBES
from colmlm.api.middleware.connections import Drain
from colmlm.api.middleware.limiters import Limiter, Limiters
from colmlm.api.request_context import RequestState, method_of, route_of, status_of
from colmlm.api.settings import ServerSettings
from colmlm.api.supervision import SharedState
from colmlm.api.watch.metrics import Metrics, Tracing
from colmlm.kb.errors import NoActiveKeyset
from colmlm.kb.evidence.generation import Generator
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.tickets import OwnWorker, report_no_worker
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.store import is_standby

if TYPE_CHECKING:
    from litestar.types import HTTPScope

    from colmlm.kb.access.records import TokenRecord


@dataclass(frozen=True, slots=True)
class Operations:
    """The parts that observe and end one server. `api.app.create_app` takes them; the HTTP server also uses `drain`."""

    metrics: Metrics
    drain: Drain
    tracing: Tracing | None = None
    worker: OwnWorker = report_no_worker
    shared: SharedState | None = None

    @classmethod
    def of(
        cls,
        kb: KnowledgeBase,
        settings: ServerSettings,
        tracing: Tracing | None = None,
        worker: OwnWorker = report_no_worker,
        shared: SharedState | None = None,
    ) -> Operations:
        """Make the parts from a server's settings. `worker` gives the state of the server's own worker.

        `shared` is what this process shares with others that serve at the same port.
        """
        return cls(Metrics(kb, worker, shared), Drain(settings.drain_seconds), tracing, worker, shared)

    @property
    def watch(self) -> Watch:
        """The wrapper that measures every request."""
        return Watch(self.metrics, self.drain, self.tracing)

    def observe(self, kb: KnowledgeBase) -> None:
        """Observe the lookups of this knowledge base."""
        tracing = self.tracing
        kb.searcher.observer = TracingObserver(self.metrics, tracing) if tracing else self.metrics

    def observe_generator(self, generator: Generator) -> Generator:
        """Wrap a generator so that its outputs are timed."""
        return cast(Generator, ObservedGenerator(generator, self.metrics, self.tracing))


# Wrappers that count, time and trace the parts of a server.


@dataclass(frozen=True, slots=True)
class TracingObserver:
    """A `kb.lookup.records.Observer` that records each part of a lookup as a span as well as a metric."""

    metrics: Metrics
    tracing: Tracing

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        with self.tracing.span(part), self.metrics.timed(part):
            yield

    def looked_up(self, lookups: Sequence[Lookup]) -> None:
        self.metrics.looked_up(lookups)


class ObservedGenerator:
    """A generator that times its outputs and the first piece of each stream; everything else is delegated."""

    def __init__(self, generator: Generator, metrics: Metrics, tracing: Tracing | None) -> None:
        self._generator, self._metrics, self._tracing = generator, metrics, tracing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def generate(self, *request: Any, **options: Any) -> Any:
        with self._decoding():
            return self._generator.generate(*request, **options)

    def complete(self, *requests: Any, **options: Any) -> Any:
        with self._decoding():
            return self._generator.complete(*requests, **options)

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        with self._tracing.span("decode") if self._tracing else nullcontext(), self._metrics.timed("decode"):
            yield

    def stream(self, *request: Any, **options: Any) -> Iterator[Any]:
        """Yield the generator's items, timed. Its steps may run in different threads, each within the same span."""
        started, is_first = time.perf_counter(), True
        items: Any = self._generator.stream(*request, **options)
        with closing(items), ExitStack() as at_end:
            step = self._step(at_end)
            at_end.callback(lambda: self._metrics.record_duration("decode", time.perf_counter() - started))
            while True:
                with step():
                    item = next(items, None)
                if item is None:
                    return
                if is_first:
                    self._metrics.record_duration("first_token", time.perf_counter() - started)
                    is_first = False
                yield item

    def _step(self, at_end: ExitStack) -> Callable[[], AbstractContextManager[None]]:
        """Give the context manager that each step of a stream runs in."""
        tracing = self._tracing
        if tracing is None:
            return nullcontext
        span = tracing.begin("decode")
        at_end.callback(span.end)
        return lambda: tracing.resume_span(span)


# Counts, times and logs every request.

_log = logging.getLogger("colmlm.request")


@dataclass(frozen=True, slots=True)
class Watch:
    """The wrapper around each request of one server."""

    metrics: Metrics
    drain: Drain
    tracing: Tracing | None = None

    @contextmanager
    def running(self, scope: HTTPScope, request: RequestState) -> Iterator[None]:
        """Measure a request, from before authentication until its response is sent."""
        started = time.perf_counter()
        self.drain.num_running += 1
        self.metrics.in_progress.inc()
        try:
            with self.tracing.request(scope, request) if self.tracing else nullcontext():
                try:
                    yield
                finally:
                    self._record_request(scope, request, time.perf_counter() - started)
        finally:
            self.metrics.in_progress.dec()
            self.drain.num_running -= 1

    def _record_request(self, scope: HTTPScope, request: RequestState, took: float) -> None:
        method, route = method_of(scope), route_of(scope)
        status = status_of(request)
        self.metrics.count_answer(method, route, status, took)
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


@dataclass(slots=True)
class Readiness:
    """Checks which parts the server lacks, by fixed names. `models` is empty in a server without a model.

    Anybody may send a probe, so a result is reused for `keep_seconds`, and one check runs at a time, for at most
    `look_seconds`, while other probes wait for its result. `others` tells whether all processes that serve at this port
    are there. Used on the event loop.
    """

    kb: KnowledgeBase
    models: LoadedModels
    drain: Drain
    limiters: Limiters
    max_lag: int
    keep_seconds: float = 1.0
    look_seconds: float = 5.0
    worker: OwnWorker = report_no_worker
    others: Callable[[], bool] | None = None
    _kept: tuple[float, tuple[str, ...], tuple[str, ...]] | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def missing_parts(self) -> tuple[str, ...]:
        """Give the names of the missing parts; none if the server is ready. A drain is reported without a check."""
        if self.drain.has_begun:
            return ("draining",)
        missing, _ = await self._recent_check()
        return missing if self.others is None or self.others() else (*missing, "servers")

    async def degraded_parts(self) -> tuple[str, ...]:
        """Give the names of what is degraded though requests should be sent: `active keyset`, where nothing can be
        looked up yet, `worker`, where no jobs are done, and `model`, where one that may be wanted next is not loaded.
        """
        _, degraded = await self._recent_check()
        return degraded

    async def _recent_check(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        async with self._asking:
            if self._kept is None or time.monotonic() - self._kept[0] > self.keep_seconds:
                self._kept = time.monotonic(), *await self._run_check()
            return self._kept[1:]

    def check_degraded_parts(self) -> tuple[str, ...]:
        """Give the names of the parts that are degraded now, by a query of the database."""
        try:
            wanting = Jobs(self.kb).lacks_worker(self.worker())
        except SQLAlchemyError:
            return self._own_degraded()
        return (*(("worker",) if wanting else ()), *self._degraded_models())

    def _own_degraded(self) -> tuple[str, ...]:
        """Give the names of degraded parts without a query: the worker of this server, and its models."""
        state = self.worker()
        return (*(("worker",) if state is not None and not state.running else ()), *self._degraded_models())

    def _degraded_models(self) -> tuple[str, ...]:
        return ("model",) if self.models.refused else ()

    async def _run_check(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Give the names of the missing and the degraded parts. On a timeout the database is missing: it may hang."""
        try:
            looking = self.limiters.run(Limiter.probes, self._check_parts)
            return await asyncio.wait_for(looking, self.look_seconds)
        except TimeoutError:
            return ("database",), self._own_degraded()

    def _check_parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        missing, degraded = self._check_database()
        ailing = (
            self._own_degraded() if {"database", "migrations"} & {*missing} else self.check_degraded_parts()
        )
        return tuple(missing), (*degraded, *ailing)

    def _check_database(self) -> tuple[list[str], list[str]]:
        try:
            if not database.can_serve(self.kb.engine):
                return ["migrations"], []
            if is_standby(self.kb.engine):
                return ["primary"], []
            return self._check_lookups()
        except SQLAlchemyError:
            return ["database"], []

    def _check_lookups(self) -> tuple[list[str], list[str]]:
        """Give what is missing for lookups, the model or the index, and "active keyset" as degraded if none is active.

        Without an active keyset nothing is missing: a server that got no requests could not be sent the first
        documents, without which no keyset can become active.
        """
        try:
            active = self.kb.keysets.active()
        except NoActiveKeyset:
            return [], ["active keyset"]
        there = not self.models or active.checkpoint_id in self.models
        return [*([] if there else ["checkpoint of the active keyset"]), *self._check_index()], []

    def _check_index(self) -> list[str]:
        """Give "index" as missing unless the index is open and near the head of the log.

        The follower opens it; a lookup would wait minutes.
        """
        lag = self.kb.lookups.standing().lag
        return [] if lag is not None and lag <= self.max_lag else ["index"]
