"""Outputs while they are decoded: places for a few at a time, and their parts as server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from litestar.response import ServerSentEventMessage

from api.errors import Busy, problem_of
from api.ports import Finished, GenerationRequest, Item, Missed, Ports, Spliced

MAX_GENERATIONS = 4


@contextmanager
def slot(ports: Ports) -> Iterator[None]:
    """A place to decode in. Raises `Busy` where all are taken."""
    if not ports.generation_slots.acquire(blocking=False):
        raise Busy(MAX_GENERATIONS)
    try:
        yield
    finally:
        ports.generation_slots.release()


def decoded(ports: Ports, request: GenerationRequest) -> Iterator[Item]:
    """The generator's items. The slot is free again when they end, or when a client that left lets go of them."""
    with slot(ports):
        yield from ports.need_generator().stream(request)


def events(items: Iterator[Item]) -> Iterator[ServerSentEventMessage]:
    """An event for each item, and one for the error that ended them early."""
    try:
        for item in items:
            yield _event(_name(item), {"text": item} if isinstance(item, str) else item)
    except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
        yield _event("error", problem_of(error)[0])


def _name(item: Item) -> str:
    match item:
        case str():
            return "piece"
        case Spliced():
            return "splice"
        case Missed():
            return "no_match"
        case Finished():
            return "finish"
    return "trace"


def _event(name: str, data: object) -> ServerSentEventMessage:
    return ServerSentEventMessage(event=name, data=msgspec.json.encode(data).decode())
