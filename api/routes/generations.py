"""Generations: decode a prompt, at once or as a stream, and read stored outputs with their evidence."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import JSONBody, QueryParameter
from litestar.response import ServerSentEvent

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts, await_seen
from colmlm.api.routes.edits import WithToken, events
from colmlm.api.routes.provenance import traced
from colmlm.api.schema.schemas import Cursor, Limit, PathId, after_of, page, shown_to
from colmlm.api.wire.answers import Page
from colmlm.api.wire.requests import NewGeneration
from colmlm.kb.evidence.provenance import of_output
from colmlm.kb.evidence.records import GenerationRecord, OutputTrace, Thumb

Given = Annotated[Thumb | None, QueryParameter(name="feedback", description="Only outputs with such a thumb")]


@post("/generations", opt=needs(Right.read, Lane.decoding), responses=PROBLEMS, sync_to_thread=True)
def generate(ports: FromPorts, data: JSONBody[NewGeneration]) -> Response[OutputTrace]:
    """Generate.

    Decodes a prompt, stores the output, and gives its trace. With `stream` the response is `text/event-stream`. Events
    `piece` ({"text"}) hold the output in parts. Between them come `splice` (offsets in the output, fact, value, score
    and document), right after the piece that ends with the value, and `no_match`. At the end come one `finish` and one
    `trace`, or one `error` (a problem document) where decoding failed.
    """
    request, generator = data.request(), ports.need_generator()
    await_seen(ports, data.min_seq)
    if not data.stream:
        return Response(generator.generate(request))
    items = generator.stream(request)
    first = next(items)  # an error raised here still gets its own status
    streamed: Response[Any] = ServerSentEvent(events(chain([first], items)), status_code=201)
    return streamed


@get("/generations", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_generations(
    ports: FromPorts, request: WithToken, feedback: Given = None, cursor: Cursor = None, limit: Limit = 50
) -> Page[GenerationRecord]:
    """List stored outputs.

    Newest first, or only those that somebody gave this thumb. Without the right `audit`, values that their facts no
    longer have are masked.
    """
    after = after_of(cursor, "generations")
    found = shown_to(request, ports).generations(after=after, limit=limit + 1, thumb=feedback)
    return page(found, limit, "generations", lambda stored: (stored.generation_id,))


@get("/generations/{generation_id:int}", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def trace_output(ports: FromPorts, request: WithToken, generation_id: PathId) -> Response[OutputTrace]:
    """Trace a stored output.

    Gives every lookup it made: what was spliced, on what evidence, and what has happened to the fact since. Without the
    right `audit`, values that its facts no longer have are masked. `Accept: application/ld+json` gives it in the terms
    of W3C PROV as JSON-LD, `application/provenance+json` as PROV-JSON.
    """
    trace = shown_to(request, ports).trace_output(generation_id)
    return traced(ports, request, trace, of_output)
