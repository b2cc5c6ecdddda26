"""The feed of changes: server-sent events that wait for what comes.

A stream asks the database once a second, which costs one look into an index, and needs no connection of its own while
it waits. It ends after some minutes: whoever reconnects, as browsers do by themselves, is admitted anew, so a
revoked key does not go on listening.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from api.errors import PROBLEMS, TooManyFeeds, problem_of
from api.ports import MAX_FEEDS, FromPorts, Ports
from api.rights import Right, needs
from api.schemas import MAX_ID
from kb.errors import InvalidQuery

POLL_SECONDS = 1.0
IDLE_SECONDS = 15.0  # between signs of life: proxies cut silent connections
LONGEST_SECONDS = 300
PIECE = 100

FromSeq = Annotated[
    int | None,
    QueryParameter(
        gt=-1, le=MAX_ID, description="Give what comes after this change; none: what comes from now on"
    ),
]
Seconds = Annotated[int, QueryParameter(ge=0, le=LONGEST_SECONDS, description="When the stream ends")]
LastEvent = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", max_length=20, description="The last event that was received"),
]


@get("/changes/events", opt=needs(Right.audit), responses=PROBLEMS, media_type="text/event-stream")
async def follow_changes(
    ports: FromPorts, after: FromSeq = None, seconds: Seconds = LONGEST_SECONDS, last_event: LastEvent = None
) -> ServerSentEvent:
    """Follow the change log.

    `text/event-stream`: an event `change` for each change, its seq as the id, and comments while nothing comes. A
    client that reconnects with `Last-Event-ID` misses nothing. An `error` event is a problem document.
    """
    start = _seq(last_event) if last_event is not None else after
    if start is None:
        start = await sync_to_thread(ports.kb.head_seq)
    events = _events(ports, start, seconds)
    first = await anext(events)  # where no place is left, that is said here, while the status is still open
    return ServerSentEvent(_chained(first, events))


async def _chained(
    first: ServerSentEventMessage, rest: AsyncIterator[ServerSentEventMessage]
) -> AsyncIterator[ServerSentEventMessage]:
    yield first
    async for message in rest:
        yield message


async def _events(ports: Ports, seq: int, seconds: int) -> AsyncIterator[ServerSentEventMessage]:
    clock = asyncio.get_running_loop().time
    async with _place(ports):
        end, spoke = clock() + min(seconds, LONGEST_SECONDS), clock()
        yield ServerSentEventMessage(data=None, comment=f"changes after {seq}")
        while True:
            try:
                changes = await sync_to_thread(ports.kb.changes, seq, PIECE)
            except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
                problem = msgspec.json.encode(problem_of(error)[0]).decode()
                yield ServerSentEventMessage(event="error", data=problem)
                return
            for change in changes:
                seq = change.seq
                data = msgspec.json.encode(change).decode()
                yield ServerSentEventMessage(event="change", id=str(seq), data=data)
            if not changes and clock() - spoke >= IDLE_SECONDS:
                yield ServerSentEventMessage(data=None, comment="nothing new")
                spoke = clock()
            if changes:
                spoke = clock()
            if clock() >= end or ports.readiness.drain.has_begun:
                return
            if len(changes) < PIECE:
                await asyncio.sleep(min(POLL_SECONDS, max(0.0, end - clock())))


@asynccontextmanager
async def _place(ports: Ports) -> AsyncIterator[None]:
    if not ports.feed_slots.acquire(blocking=False):
        raise TooManyFeeds(MAX_FEEDS)
    try:
        yield
    finally:
        ports.feed_slots.release()


def _seq(said: str) -> int:
    if not said.isascii() or not said.isdecimal() or int(said) > MAX_ID:
        raise InvalidQuery("the Last-Event-ID is no change's seq")
    return int(said)
