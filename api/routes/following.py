"""Streams of server-sent events that poll for news until their subject is over, their time is up, or the server drains.

A stream queries the database once a second, which reads one database index, and holds no connection while it waits. It
ends after some minutes. A client that reconnects, as browsers do by themselves, is authenticated again, so a revoked
token does not keep listening. A draining server ends its streams at once with a last event `draining`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec
from litestar.concurrency import sync_to_thread
from litestar.response import ServerSentEvent, ServerSentEventMessage

from colmlm.api.errors import Draining, problem_of
from colmlm.api.ports import Ports


@dataclass(frozen=True, slots=True)
class Glance:
    """The result of one poll: events to send, whether more are ready at once, and whether this was the last."""

    messages: list[ServerSentEventMessage]
    has_more: bool = False
    is_over: bool = False


def followed(ports: Ports, look: Callable[[], Glance], seconds: float | None = None) -> ServerSentEvent:
    """Gives a stream of the events that `look` finds. `look` is called repeatedly, in a thread."""
    longest = ports.tuning.longest_seconds
    return ServerSentEvent(_messages(ports, look, longest if seconds is None else min(seconds, longest)))


async def _messages(
    ports: Ports, look: Callable[[], Glance], seconds: float
) -> AsyncIterator[ServerSentEventMessage]:
    clock, tuning, drain = asyncio.get_running_loop().time, ports.tuning, ports.readiness.drain
    end, spoke = clock() + seconds, float("-inf")
    while True:
        try:
            seen = await sync_to_thread(look)
        except Exception as error:  # noqa: BLE001 - the status is already sent, so an event and the log report it
            yield _problem("error", error)
            return
        for message in seen.messages:
            yield message
        if seen.messages:
            spoke = clock()
        elif clock() - spoke >= tuning.idle_seconds:
            yield ServerSentEventMessage(data=None, comment="nothing new")
            spoke = clock()
        if seen.is_over or clock() >= end:
            return
        pause = 0.0 if seen.has_more else min(tuning.poll_seconds, end - clock())
        if await drain.begins_within(pause):
            yield _problem("draining", Draining())
            return


def _problem(event: str, error: Exception) -> ServerSentEventMessage:
    return ServerSentEventMessage(event=event, data=msgspec.json.encode(problem_of(error)[0]).decode())
