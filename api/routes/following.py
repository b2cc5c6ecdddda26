"""Streams that wait: server-sent events of what is new, until it is over, the time is, or the server ends.

A stream asks the database once a second, which costs one look into an index, and needs no connection of its own while
it waits. It ends after some minutes: whoever reconnects, as browsers do by themselves, is admitted anew, so a
revoked key does not go on listening. A server that ends says so with a last event, `draining`, and waits for none.
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
class Seen:
    """What one look found: what to send; whether there is more to send at once; whether nothing will come any more."""

    messages: list[ServerSentEventMessage]
    has_more: bool = False
    is_over: bool = False


def followed(ports: Ports, look: Callable[[], Seen], seconds: float | None = None) -> ServerSentEvent:
    """A stream of what `look` finds; it is called in a thread, again and again."""
    longest = ports.tuning.longest_seconds
    return ServerSentEvent(_messages(ports, look, longest if seconds is None else min(seconds, longest)))


async def _messages(
    ports: Ports, look: Callable[[], Seen], seconds: float
) -> AsyncIterator[ServerSentEventMessage]:
    clock, tuning, drain = asyncio.get_running_loop().time, ports.tuning, ports.readiness.drain
    end, spoke = clock() + seconds, float("-inf")
    while True:
        try:
            seen = await sync_to_thread(look)
        except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
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
