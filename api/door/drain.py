"""How a server ends: it takes nothing new, tells its probes so, lets what runs come to its end, and stops.

The address stays open meanwhile, or a load balancer could not be told that this server is leaving. All of this is
touched by the event loop's thread alone, signals included.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from types import FrameType

import uvicorn

_log = logging.getLogger(__name__)


class Drain:
    """Whether this server is ending, and how many requests it is still at."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.num_running = 0
        self._until: float | None = None
        self._awaiting: set[asyncio.Event] = set()

    @property
    def has_begun(self) -> bool:
        return self._until is not None

    def begin(self) -> None:
        self._until = time.monotonic() + self.seconds
        for begun in self._awaiting:
            begun.set()
        _log.info("draining", extra={"requests_running": self.num_running, "seconds": self.seconds})

    async def begins_within(self, seconds: float) -> bool:
        """Whether it has begun, now or so many seconds from now; says so as soon as it has."""
        if self.has_begun or seconds <= 0:
            return self.has_begun
        begun = asyncio.Event()
        self._awaiting.add(begun)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(begun.wait(), seconds)
        finally:
            self._awaiting.discard(begun)
        return self.has_begun

    def is_over(self) -> bool:
        """Whether to stop now: nothing runs any more, or it ran for too long."""
        if self._until is None:
            return False
        return self.num_running == 0 or time.monotonic() >= self._until


class DrainingServer(uvicorn.Server):
    """uvicorn, which by itself closes its address first. A second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self.drain = drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.drain.has_begun:
            self.should_exit = self.force_exit = True
        else:
            self.drain.begin()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.drain.is_over()
