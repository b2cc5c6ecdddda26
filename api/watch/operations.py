"""The parts that observe one server and end it: metrics, tracing, and drain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from colmlm.api.door.drain import Drain
from colmlm.api.nouns.generation import Generator
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.metrics import Metrics
from colmlm.api.watch.observed import ObservedGenerator, TracingObserver
from colmlm.api.watch.tracing import Tracing
from colmlm.api.watch.watcher import Watch
from colmlm.kb.jobs.attendance import OwnWorker, no_worker
from colmlm.kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class Operations:
    """The parts that observe and end one server. `api.app.create_app` takes them; `drain` is also the server's own."""

    metrics: Metrics
    drain: Drain
    tracing: Tracing | None = None
    worker: OwnWorker = no_worker

    @classmethod
    def of(
        cls,
        kb: KnowledgeBase,
        settings: ServerSettings,
        tracing: Tracing | None = None,
        worker: OwnWorker = no_worker,
    ) -> Operations:
        """Makes them from the settings. `worker` gives the state of the server's own worker."""
        return cls(Metrics(kb, worker), Drain(settings.drain_seconds), tracing, worker)

    @property
    def watch(self) -> Watch:
        """The wrapper that measures every request."""
        return Watch(self.metrics, self.drain, self.tracing)

    def observe(self, kb: KnowledgeBase) -> None:
        """Observes the lookups of this knowledge base."""
        tracing = self.tracing
        kb.searcher.observer = TracingObserver(self.metrics, tracing) if tracing else self.metrics

    def observed(self, generator: Generator) -> Generator:
        """Wraps a generator so that its outputs are timed."""
        return cast(Generator, ObservedGenerator(generator, self.metrics, self.tracing))
