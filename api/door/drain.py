"""Shuts a server down without breaking off requests: it refuses new ones, waits for the running ones, then stops.

The listening socket stays open meanwhile, so that probes can tell a load balancer that this server is ending. Only the
event loop's thread uses this state, also for signals.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

_log = logging.getLogger(__name__)


class Drain:
    """The state of a shutdown: whether it has begun, and how many requests still run.

    A server that `hands_over` to the process that takes its place refuses nothing: it answers what comes on the
    connections that are open, asks to close them, and ends without them.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.num_running = 0
        self.hands_over = False
        self._until: float | None = None
        self._awaiting: set[asyncio.Event] = set()

    @property
    def has_begun(self) -> bool:
        """Whether new requests are refused."""
        return self._until is not None and not self.hands_over

    def begin(self, *, hands_over: bool = False) -> None:
        self._until, self.hands_over = time.monotonic() + self.seconds, hands_over
        for begun in self._awaiting:
            begun.set()
        _log.info("draining", extra={"requests_running": self.num_running, "seconds": self.seconds})

    async def begins_within(self, seconds: float) -> bool:
        """Waits up to `seconds` for the shutdown to begin, and tells whether it has begun."""
        if self._until is not None or seconds <= 0:
            return self._until is not None
        begun = asyncio.Event()
        self._awaiting.add(begun)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(begun.wait(), seconds)
        finally:
            self._awaiting.discard(begun)
        return self._until is not None

    def is_over(self, num_connections: int = 0) -> bool:
        """Tells whether to stop now: nothing is left to answer, or the drain's time is up."""
        if self._until is None:
            return False
        left = self.num_running + (num_connections if self.hands_over else 0)
        return left == 0 or time.monotonic() >= self._until


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains first and closes its socket last. A second signal ends it at once.

    `on_up` is called when it answers. By SIGHUP it leaves its socket to another process that has it, too.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Drain, on_up: Callable[[], object] | None = None
    ) -> None:
        super().__init__(config)
        self.drain, self.on_up = drain, on_up

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.drain.has_begun:
            self.should_exit = self.force_exit = True
        else:
            self.drain.begin()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_up is not None and self.started:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hand_over)
            self.on_up()

    def _hand_over(self) -> None:
        if not self.drain.has_begun:
            self.drain.begin(hands_over=True)
            for listening in self.servers:
                listening.close()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.drain.is_over(len(self.server_state.connections))
