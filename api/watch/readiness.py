"""Whether this server should be sent requests: everything there that an answer needs, and not about to end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.door.drain import Drain
from colmlm.api.door.lanes import Lane, Lanes
from colmlm.kb.errors import NoActiveKeyset
from colmlm.kb.jobs.attendance import OwnWorker, no_worker
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database


@dataclass(slots=True)
class Readiness:
    """What is missing, by names of a fixed list. `encoder` is None in a server that was started without a model.

    Anybody may ask, so an answer is given again for `keep_seconds`, and one looks, for `look_seconds` at most,
    while the others wait for what it finds. Used on the event loop.
    """

    kb: KnowledgeBase
    encoder: Encoder | None
    drain: Drain
    lanes: Lanes
    max_lag: int
    keep_seconds: float = 1.0
    look_seconds: float = 5.0
    worker: OwnWorker = no_worker
    _kept: tuple[float, tuple[str, ...], tuple[str, ...]] | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def missing(self) -> tuple[str, ...]:
        """Empty where the server is ready. A drain is told at once."""
        if self.drain.has_begun:
            return ("draining",)
        missing, _ = await self._looked()
        return missing

    async def degraded(self) -> tuple[str, ...]:
        """What does not work, though every request is answered: `worker`, where jobs are not done."""
        _, degraded = await self._looked()
        return degraded

    async def _looked(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        async with self._asking:
            if self._kept is None or time.monotonic() - self._kept[0] > self.keep_seconds:
                self._kept = time.monotonic(), *await self._found()
            return self._kept[1:]

    def ailing(self) -> tuple[str, ...]:
        """What is degraded, asked of the database now."""
        try:
            return ("worker",) if Jobs(self.kb).is_wanting(self.worker()) else ()
        except SQLAlchemyError:
            return self._own_ailing()

    def _own_ailing(self) -> tuple[str, ...]:
        """The same without the database, which is waited for by the worker too."""
        state = self.worker()
        return ("worker",) if state is not None and not state.running else ()

    async def _found(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a look finds, or that the database does not answer: it may stop without closing its connections."""
        try:
            looking = self.lanes.run(Lane.probes, self._look_twice)
            return await asyncio.wait_for(looking, self.look_seconds)
        except TimeoutError:
            return ("database",), self._own_ailing()

    def _look_twice(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        missing = tuple(self._look())
        return missing, self._own_ailing() if {"database", "migrations"} & {*missing} else self.ailing()

    def _look(self) -> list[str]:
        try:
            if not database.can_serve(self.kb.engine):
                return ["migrations"]
            return [*self._keyset(), *self._index()]
        except SQLAlchemyError:
            return ["database"]

    def _keyset(self) -> list[str]:
        """Lookups need an active keyset, and questions and prompts one of the model that is loaded."""
        try:
            active = self.kb.keysets.answering()
        except NoActiveKeyset:
            return ["active keyset"]
        loaded = self.encoder.checkpoint.checkpoint_id if self.encoder else active.checkpoint_id
        return [] if loaded == active.checkpoint_id else ["checkpoint of the active keyset"]

    def _index(self) -> list[str]:
        """An index that is open and near the head; the follower opens it, and it would cost a lookup minutes."""
        lag = self.kb.lookups.standing().lag
        return [] if lag is not None and lag <= self.max_lag else ["index"]
