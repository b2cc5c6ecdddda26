"""Tell whether this server should be sent requests: it lacks nothing that another server has, and is not draining."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.loaded_models import LoadedModels
from colmlm.api.middleware.connections import Drain
from colmlm.api.middleware.limiters import Limiter, Limiters
from colmlm.kb.errors import NoActiveKeyset
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.jobs.tickets import OwnWorker, no_worker
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.store import is_standby


@dataclass(slots=True)
class Readiness:
    """Check what the server is missing, by names of a fixed list. `models` is empty in a server without one.

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
    worker: OwnWorker = no_worker
    others: Callable[[], bool] | None = None
    _kept: tuple[float, tuple[str, ...], tuple[str, ...]] | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def missing(self) -> tuple[str, ...]:
        """Give the names of what is missing; none where the server is ready. A drain is reported at once."""
        if self.drain.has_begun:
            return ("draining",)
        missing, _ = await self._looked()
        return missing if self.others is None or self.others() else (*missing, "servers")

    async def degraded(self) -> tuple[str, ...]:
        """Give the names of what is degraded though requests should be sent: `active keyset`, where nothing can be
        looked up yet, `worker`, where no jobs are done, and `model`, where one that may be wanted next is not loaded.
        """
        _, degraded = await self._looked()
        return degraded

    async def _looked(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        async with self._asking:
            if self._kept is None or time.monotonic() - self._kept[0] > self.keep_seconds:
                self._kept = time.monotonic(), *await self._found()
            return self._kept[1:]

    def ailing(self) -> tuple[str, ...]:
        """Check now, in the database, what is degraded."""
        try:
            wanting = Jobs(self.kb).is_wanting(self.worker())
        except SQLAlchemyError:
            return self._own_ailing()
        return (*(("worker",) if wanting else ()), *self._models())

    def _own_ailing(self) -> tuple[str, ...]:
        """Check what is degraded without the database: whether its own worker runs, and its models are there."""
        state = self.worker()
        return (*(("worker",) if state is not None and not state.running else ()), *self._models())

    def _models(self) -> tuple[str, ...]:
        return ("model",) if self.models.refused else ()

    async def _found(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Run the check. On a timeout the database counts as missing, since it may hang with its connections open."""
        try:
            looking = self.limiters.run(Limiter.probes, self._look_twice)
            return await asyncio.wait_for(looking, self.look_seconds)
        except TimeoutError:
            return ("database",), self._own_ailing()

    def _look_twice(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        missing, degraded = self._look()
        ailing = self._own_ailing() if {"database", "migrations"} & {*missing} else self.ailing()
        return tuple(missing), (*degraded, *ailing)

    def _look(self) -> tuple[list[str], list[str]]:
        try:
            if not database.can_serve(self.kb.engine):
                return ["migrations"], []
            if is_standby(self.kb.engine):
                return ["primary"], []
            return self._answers()
        except SQLAlchemyError:
            return ["database"], []

    def _answers(self) -> tuple[list[str], list[str]]:
        """Check the keyset that answers, and its index.

        Where none is active yet, the base takes the documents and the keys without which none can be: a server that got
        no requests until then could not be sent the first.
        """
        try:
            active = self.kb.keysets.active()
        except NoActiveKeyset:
            return [], ["active keyset"]
        there = not self.models or active.checkpoint_id in self.models
        return [*([] if there else ["checkpoint of the active keyset"]), *self._index()], []

    def _index(self) -> list[str]:
        """Check that the index is open and near the head of the log.

        The follower opens it; a lookup would wait minutes.
        """
        lag = self.kb.lookups.standing().lag
        return [] if lag is not None and lag <= self.max_lag else ["index"]
