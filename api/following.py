"""Streams that wait: server-sent events of what is new, until it is over, the time is, or the server ends.

A stream asks the database once a second, which costs one look into an index, and needs no connection of its own while
it waits. It ends after some minutes: whoever reconnects, as browsers do by themselves, is admitted anew, so a
revoked key does not go on listening. A server that ends says so with a last event, `draining`, and waits for none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from litestar.concurrency import sync_to_thread
from litestar.response import ServerSentEvent, ServerSentEventMessage

from api.errors import Draining, TooManyFeeds, problem_of
from api.ports import MAX_FEEDS, Ports


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look found: what to send; whether there is more to send at once; whether nothing will come any more."""

    messages: list[ServerSentEventMessage]
    has_more: bool = False
    is_over: bool = False


async def followed(ports: Ports, look: Callable[[], Seen], seconds: float | None = None) -> ServerSentEvent:
    """A stream of what `look` finds; it is called in a thread, again and again. Raises `TooManyFeeds`."""
    longest = ports.tuning.longest_seconds
    messages = _messages(ports, look, longest if seconds is None else min(seconds, longest))
    first = await anext(messages)  # where no place is left, that is said here, while the status is still open
    return ServerSentEvent(_chained(first, messages))


async def _chained(
    first: ServerSentEventMessage, rest: AsyncIterator[ServerSentEventMessage]
) -> AsyncIterator[ServerSentEventMessage]:
    yield first
    async for message in rest:
        yield message


async def _messages(
    ports: Ports, look: Callable[[], Seen], seconds: float
) -> AsyncIterator[ServerSentEventMessage]:
    clock, tuning, drain = asyncio.get_running_loop().time, ports.tuning, ports.readiness.drain
    async with _place(ports):
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


@asynccontextmanager
async def _place(ports: Ports) -> AsyncIterator[None]:
    if not ports.feed_slots.acquire(blocking=False):
        raise TooManyFeeds(MAX_FEEDS)
    try:
        yield
    finally:
        ports.feed_slots.release()
