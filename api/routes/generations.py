"""Generations: decode prompts, keep and read outputs, judge them, and read what became of their facts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, get, post
from litestar.params import JSONBody, QueryParameter
from litestar.response import ServerSentEvent
from msgspec import Meta

from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, in_thread
from colmlm.api.ports import FromPorts, await_seen
from colmlm.api.routes.parameters import (
    Cursor,
    Limit,
    OfDocument,
    PathId,
    SelectorParts,
    WithToken,
    after_of,
    page,
    place_of,
    require_past,
    shown_to,
)
from colmlm.api.routes.responses import encode_trace, stream_events
from colmlm.api.wire import MAX_ID, Behalf, FactImpact, Id, NewGeneration, Page, RankingName, Request, Seq
from colmlm.kb.errors import InvalidQuery, InvalidValue
from colmlm.kb.evidence.outputs import AttributionRecord
from colmlm.kb.evidence.provenance import output_account
from colmlm.kb.evidence.records import (
    Feedback,
    GenerationRecord,
    ImpactedOutput,
    NewFeedback,
    NewOutput,
    OutputTrace,
    Splice,
    Thumb,
)
from colmlm.kb.evidence.storing import MOST_CHARACTERS
from colmlm.kb.lookup.options import CorporaNames

Given = Annotated[Thumb | None, QueryParameter(name="feedback", description="Only outputs with such a thumb")]
AskedBy = Annotated[
    str | None,
    QueryParameter(
        max_length=200, description="Only outputs that this token, or user of the machine, asked for"
    ),
]


@post("/generations", **in_thread(Right.read, Limiter.decoding, scoped=CorpusLimit.filter))
def generate(ports: FromPorts, request: WithToken, data: JSONBody[NewGeneration]) -> Response[OutputTrace]:
    """Generate.

    Decodes a prompt, stores the output, and gives its trace. With `stream` the response is `text/event-stream`. Events
    `piece` ({"text"}) hold the output in parts. Between them come `splice` (offsets in the output, fact, value, score
    and document), right after the piece that ends with the value, and `no_match`. At the end come one `finish` and one
    `trace`, or one `error` (a problem document) where decoding failed.
    """
    generator, shown = ports.need_generator(), shown_to(request, ports)
    await_seen(ports, data.min_seq)
    if not data.stream:
        return Response(shown.output(generator.generate(data.request())))
    items = (
        shown.output(item) if isinstance(item, OutputTrace) else item
        for item in generator.stream(data.request())
    )
    first = next(items)  # an error raised here still gets its own status
    streamed: Response[Any] = ServerSentEvent(stream_events(chain([first], items)), status_code=201)
    return streamed


@get("/generations", **in_thread(Right.read, scoped=CorpusLimit.rows))
def list_generations(
    ports: FromPorts,
    request: WithToken,
    feedback: Given = None,
    principal: AskedBy = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[GenerationRecord]:
    """List stored outputs.

    Newest first, or only those that somebody gave this thumb. Without the right `audit`, values that their facts no
    longer have are masked, and nobody is told who asked; `principal` needs that right.
    """
    if principal is not None:
        require_past(request)
        if "\x00" in principal:
            raise InvalidQuery("the name holds a NUL character. Remove it")
    after, shown = after_of(cursor, "generations"), shown_to(request, ports)
    found = shown.generations(after=after, limit=limit + 1, thumb=feedback, principal=principal)
    return page(found, limit, "generations", lambda stored: (stored.generation_id,))


@get("/generations/{generation_id:int}", **in_thread(Right.read, scoped=CorpusLimit.rows))
def trace_output(ports: FromPorts, request: WithToken, generation_id: PathId) -> Response[OutputTrace]:
    """Trace a stored output.

    Gives every lookup it made: what was spliced, on what evidence, and what has happened to the fact since. Without the
    right `audit`, values that its facts no longer have are masked. `Accept: application/ld+json` gives it in the terms
    of W3C PROV as JSON-LD, `application/provenance+json` as PROV-JSON.
    """
    trace = shown_to(request, ports).trace_output(generation_id)
    return encode_trace(ports, request, trace, output_account)


# Stores outputs that were decoded on other machines, with their attributions, so that audits include them.

MAX_CHARACTERS = 500_000
MAX_SPLICES = 2000
MAX_QUERY = 2 * 16_384  # bytes of the widest query in fp16

OutputWords = Annotated[str, Meta(max_length=MAX_CHARACTERS)]
Offset = Annotated[int, Meta(ge=0, le=MAX_CHARACTERS)]


class SpliceMade(Request, frozen=True, kw_only=True):
    """One lookup of the decoder, as `kb.evidence.records.Splice`. `query` is base64 of little-endian fp16.

    Its fields are that record's, with a limit for each, since others send it.
    """

    output_start: Offset
    output_end: Offset
    outcome: Literal["hit", "no_match", "abstained"]
    fact_id: Id | None = None
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    score: Annotated[float, Meta(ge=-2, le=2)] | None = None
    query: Annotated[str, Meta(max_length=2 * MAX_QUERY)] | None = None


class OutputMade(Request, frozen=True, kw_only=True):
    """An output of a decoder on another machine. `seq` is the last change that its lookups had seen."""

    prompt: OutputWords
    output: OutputWords
    checkpoint_id: Annotated[str, Meta(min_length=1, max_length=200)]
    mode: Literal["auto", "forced", "off"]
    seq: Seq
    splices: Annotated[list[SpliceMade], Meta(max_length=MAX_SPLICES)] = msgspec.field(default_factory=list)
    ranking: RankingName = "key"
    accepted_only: bool = False
    corpora: CorporaNames = ()

    def generation(self) -> NewOutput:
        splices = (
            Splice(**{**msgspec.structs.asdict(made), "query": _bytes(made.query)}) for made in self.splices
        )
        return NewOutput(**{**msgspec.structs.asdict(self), "splices": tuple(splices)})


@post("/generations/records", **in_thread(Right.lookup))
def record(ports: FromPorts, data: JSONBody[OutputMade]) -> OutputTrace:
    """Keep an output that was decoded elsewhere.

    Gives its trace: the evidence of each splice. A splice is refused unless its span is the value of that version of
    the fact. The present state of the facts is left out, since it needs the right `read`.
    """
    return ports.kb.outputs.record_from_elsewhere(data.generation())


def _bytes(query: str | None) -> bytes | None:
    try:
        return None if query is None else base64.b64decode(query, validate=True)
    except ValueError as error:  # binascii.Error is a ValueError; text that is not ASCII raises a plain one
        raise InvalidValue("query", "it is not base64. Encode its bytes so") from error


# Attributions and impact: which facts stored outputs spliced, and what has happened to those facts since.

OfFact = Annotated[int | None, QueryParameter(ge=1, le=MAX_ID, description="Only what spliced this fact")]
OfOutput = Annotated[int | None, QueryParameter(ge=1, le=MAX_ID, description="Only of this stored output")]


class Selection(Request, frozen=True, kw_only=True):
    """Live facts chosen by a selector."""

    selector: SelectorParts


@get("/attributions", **in_thread(Right.audit, scoped=CorpusLimit.rows))
def list_attributions(
    ports: FromPorts,
    fact_id: OfFact = None,
    generation_id: OfOutput = None,
    document_id: OfDocument = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AttributionRecord]:
    """List the lookups of stored outputs.

    The lookups that fit every filter, in order of output and of place in it.
    """
    output, ordinal = place_of(cursor, "attributions", 2)
    found = ports.kb.outputs.attributions(
        fact_id=fact_id,
        generation_id=generation_id,
        document_id=document_id,
        after=(output, ordinal),
        limit=limit + 1,
    )
    return page(found, limit, "attributions", lambda a: (a.generation_id, a.ordinal))


class SelectionImpact(msgspec.Struct, frozen=True, kw_only=True):
    """Count the live facts that a selector chose and the outputs that spliced one. `uses` are a page, oldest first."""

    num_facts: int
    num_outputs: int
    items: list[ImpactedOutput]
    next: str | None


@get("/facts/{fact_id:int}/impact", **in_thread(Right.audit, scoped=CorpusLimit.rows))
def read_fact_impact(
    ports: FromPorts, fact_id: PathId, cursor: Cursor = None, limit: Limit = 50
) -> FactImpact:
    """Read what a fact was used for.

    Every place in stored outputs where the fact was spliced, with its version there and what has happened to it since.
    """
    output, ordinal = place_of(cursor, "uses", 2)
    found = ports.kb.outputs.impact(fact_id, after=(output, ordinal), limit=limit + 1)
    uses = _uses(found.outputs, limit)
    return FactImpact(
        fact_id=fact_id,
        is_live=found.is_live,
        erased_seq=found.erased_seq,
        items=uses.items,
        next=uses.next,
    )


@post("/impact", status_code=200, **in_thread(Right.audit, Limiter.long_reads))
def read_selection_impact(
    ports: FromPorts, data: JSONBody[Selection], cursor: Cursor = None, limit: Limit = 50
) -> SelectionImpact:
    """Read what a set of facts was used for.

    The same as for one fact, for all live facts that a selector chooses. Changes nothing.
    """
    output, ordinal = place_of(cursor, "uses", 2)
    selector = data.selector.selector()
    found = ports.kb.outputs.impact_of_selection(selector, after=(output, ordinal), limit=limit + 1)
    uses = _uses(found.outputs, limit)
    return SelectionImpact(
        num_facts=found.num_facts, num_outputs=found.num_outputs, items=uses.items, next=uses.next
    )


def _uses(found: Sequence[ImpactedOutput], limit: int) -> Page[ImpactedOutput]:
    return page(found, limit, "uses", lambda use: (use.generation_id, use.ordinal))


# Feedback: what people say of stored outputs.

Said = Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS)]


class GivenFeedback(Request, frozen=True, kw_only=True):
    """A thumb for an output, perhaps with a comment, and with the value that would be right."""

    thumb: Thumb
    comment: Said | None = None
    value: Said | None = None
    on_behalf_of: Behalf | None = None


@post("/generations/{generation_id:int}/feedback", **in_thread(Right.read, Limiter.records))
def give_feedback(
    ports: FromPorts, request: WithToken, generation_id: PathId, data: JSONBody[GivenFeedback]
) -> Feedback:
    """Say whether an output is right.

    The last thumb of each token, and of each person that it speaks for, counts. A thumb down puts the output on the
    list of misses.
    """
    return ports.kb.outputs.give_feedback(
        generation_id,
        NewFeedback(data.thumb, data.comment, data.value),
        actor=request.user.name,
        on_behalf_of=data.on_behalf_of or "",
    )


HANDLERS = (
    generate,
    list_generations,
    trace_output,
    give_feedback,
    record,
    list_attributions,
    read_fact_impact,
    read_selection_impact,
)
