"""Shuts a server down without breaking off requests: it refuses new ones, waits for the running ones, then stops.

The listening socket stays open meanwhile, so that probes can tell a load balancer that this server is ending. Only the
event loop's thread uses this state, also for signals.
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
    """The state of a shutdown: whether it has begun, and how many requests still run."""

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
        """Waits up to `seconds` for the shutdown to begin, and tells whether it has begun."""
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
        """Tells whether to stop now: no request runs any more, or the drain's time is up."""
        if self._until is None:
            return False
        return self.num_running == 0 or time.monotonic() >= self._until


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains first and closes its socket last. A second signal ends it at once."""

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
