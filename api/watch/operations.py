"""What watches one server from the inside: its metrics, its spans, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from colmlm.api.door.drain import Drain
from colmlm.api.watch.metrics import Metrics
from colmlm.api.watch.observed import ObservedGenerator, TracingObserver
from colmlm.api.watch.tracing import Tracing
from colmlm.api.watch.watcher import Watch
from colmlm.kb.jobs.attendance import OwnWorker, no_worker
from colmlm.kb.nouns.generation import Generator
from colmlm.kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class Operations:
    """Made once for a server and handed to `api.app.create_app`; `api.door.drain.DrainingServer` ends it by `drain`."""

    metrics: Metrics
    drain: Drain
    tracing: Tracing | None = None
    worker: OwnWorker = no_worker

    @classmethod
    def of(
        cls, kb: KnowledgeBase, tracing: Tracing | None = None, worker: OwnWorker = no_worker
    ) -> Operations:
        """Operations as the settings of this knowledge base have them; `worker` tells of the one that is run beside."""
        return cls(Metrics(kb, worker), Drain(kb.settings.drain_seconds), tracing, worker)

    @property
    def watch(self) -> Watch:
        """What every request passes through."""
        return Watch(self.metrics, self.drain, self.tracing)

    def observe(self, kb: KnowledgeBase) -> None:
        """Hear of this knowledge base's lookups from now on."""
        tracing = self.tracing
        kb.searcher.observer = TracingObserver(self.metrics, tracing) if tracing else self.metrics

    def observed(self, generator: Generator | None) -> Generator | None:
        """The generator, timed."""
        if generator is None:
            return None
        return cast(Generator, ObservedGenerator(generator, self.metrics, self.tracing))
