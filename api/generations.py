"""Generations: decode, whole or as a stream, and read back what stored outputs say and on what evidence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.params import JSONBody
from litestar.response import ServerSentEvent, ServerSentEventMessage

from api.errors import PROBLEMS, Busy, problem_of
from api.paging import Cursor, Limit, Page, after_of, page
from api.ports import FromPorts, GenerationRequest, Ports, require_seen
from api.rights import Right, needs
from api.schemas import NewGeneration, PathId
from kb.records import GenerationRecord, OutputTrace

MAX_GENERATIONS = 4


@post("/generations", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def generate(ports: FromPorts, data: JSONBody[NewGeneration]) -> Response[OutputTrace]:
    """Generate.

    Decodes a prompt, stores the output, and gives its trace.
    With `stream` the answer is `text/event-stream`: events `piece` ({"text"}), whose texts joined are the output,
    then one `trace`, or one `error` (a problem document) where decoding failed on the way.
    """
    request, generator = data.request(), ports.need_generator()
    require_seen(ports, data.min_seq)
    if not data.stream:
        with slot(ports):
            return Response(generator.generate(request))
    items = _stream(ports, request)
    first = next(items)  # what refuses the request does so here, while the status is still open
    events: Response[Any] = ServerSentEvent(_events(chain([first], items)), status_code=201)
    return events


@get("/generations", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_generations(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[GenerationRecord]:
    """List stored outputs.

    Newest first.
    """
    found = ports.kb.generations(after=after_of(cursor, "generations"), limit=limit + 1)
    return page(found, limit, "generations", lambda stored: (stored.generation_id,))


@get("/generations/{generation_id:int}", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def trace_output(ports: FromPorts, generation_id: PathId) -> OutputTrace:
    """Trace a stored output.

    Every lookup it made: what was spliced, on what evidence, and what became of that since.
    """
    return ports.kb.trace_output(generation_id)


@contextmanager
def slot(ports: Ports) -> Iterator[None]:
    """Room to decode. Raises `Busy` where there is none."""
    if not ports.generation_slots.acquire(blocking=False):
        raise Busy(MAX_GENERATIONS)
    try:
        yield
    finally:
        ports.generation_slots.release()


def _stream(ports: Ports, request: GenerationRequest) -> Iterator[str | OutputTrace]:
    """The generator's items. The slot is free again when they end, or when a client that left lets go of them."""
    with slot(ports):
        yield from ports.need_generator().stream(request)


def _events(items: Iterator[str | OutputTrace]) -> Iterator[ServerSentEventMessage]:
    try:
        for item in items:
            if isinstance(item, str):
                yield _event("piece", {"text": item})
            else:
                yield _event("trace", item)
    except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
        yield _event("error", problem_of(error)[0])


def _event(name: str, data: object) -> ServerSentEventMessage:
    return ServerSentEventMessage(event=name, data=msgspec.json.encode(data).decode())
