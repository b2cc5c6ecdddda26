"""Ask: answers a question from the documents, or decodes a prompt and shows each spliced span with its evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.response import Redirect, ServerSentEvent, ServerSentEventMessage

from colmlm.api.console.keysets import active_keyset
from colmlm.api.console.views import (
    Form,
    OutputPiece,
    Page,
    PageRequest,
    Sent,
    SpanPassage,
    became_of,
    form_page,
    passage,
    pieces,
)
from colmlm.api.errors import problem_of
from colmlm.api.middleware.auth import Lane, Right, needs
from colmlm.api.nouns.generation import GenerationRequest
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import shown_to
from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.answers.records import SPAN, Answer
from colmlm.kb.errors import KBError, KeysetMismatch, NoActiveKeyset
from colmlm.kb.evidence.records import OutputTrace, TracedSplice
from colmlm.kb.evidence.shown import Shown
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.lookup.options import RANKINGS
from colmlm.kb.lookup.records import Hit
from colmlm.kb.tables import answer_modes
from colmlm.kb.texts.sentences import sentence_around, sentence_ends

MODES = ("auto", "forced", "off")
ON_MISS = ("", "abstain", "continue")
ANY_RANKING = ("", *RANKINGS)
MAX_TOKENS = 512
NEAREST = 6
_MOST_SHIFT = 200  # characters that corrected values move the words of an answer by
EARLIER = 8


@dataclass(frozen=True, slots=True)
class LookupEvidence:
    """The evidence of one lookup of an output. `nearest` is a list of facts, or the reason why there is none."""

    splice: TracedSplice
    number: int | None
    became: str
    passage: SpanPassage | None
    nearest: Sequence[tuple[Hit, FactRecord | None]] | str


@get("/ask", opt=needs(Right.read), sync_to_thread=True)
def ask(ports: FromPorts, request: PageRequest) -> Page:
    """Show the forms, with the output and the lookup that the query string names."""
    return _show(ports, request, Form.asked(request))


@post("/ask/answer", opt=needs(Right.read, Lane.reading), status_code=200, sync_to_thread=True)
def read(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Answer the question, store the answer, and show it with the passages near it, which are not stored."""
    form = Form(data)
    try:
        question = form.text("question", limit=MAX_QUESTION)
        form.check()
        answered = ports.need_answers().answer(question, accepted_only=form.flag("accepted_only"))
        return _show(ports, request, form, answered)
    except KBError as error:
        return _show(ports, request, form.refuse(error))


@post("/ask", opt=needs(Right.read, Lane.decoding), sync_to_thread=True)
def answer(ports: FromPorts, request: PageRequest, data: Sent) -> Page:
    """Decode the prompt, store the output, and redirect to it."""
    form = Form(data)
    try:
        wanted = _wanted(form)
        trace = ports.need_decoder().generate(wanted)
    except KBError as error:
        return _show(ports, request, form.refuse(error))
    return Redirect(_href(trace), status_code=303)


@post("/ask/stream", opt=needs(Right.read, Lane.decoding), status_code=200, sync_to_thread=True)
def stream(ports: FromPorts, data: Sent) -> Response[Any]:
    """Do the same for the page's script: send `piece` events as the text is decoded, then `done` with the output's
    address.
    """
    wanted = _wanted(Form(data))
    items = _decoding(ports, wanted)
    first = next(items)  # an error raised here still gets its own status
    events: Response[Any] = ServerSentEvent(_events(chain([first], items)))
    return events


def _wanted(form: Form) -> GenerationRequest:
    prompt = form.text("prompt", limit=8000)
    mode = form.choice("mode", MODES)
    max_tokens = form.integer("max_tokens", 1, MAX_TOKENS)
    threshold = form.number("threshold", -1, 1)
    on_miss = form.choice("on_miss", ON_MISS)
    ranking = form.choice("ranking", ANY_RANKING)
    form.check()
    return GenerationRequest(
        prompt=prompt,
        mode=mode,
        max_tokens=max_tokens or 64,
        threshold=threshold,
        on_miss=on_miss or None,
        ranking=ranking or None,
        accepted_only=form.flag("accepted_only"),
    )


def _decoding(ports: Ports, wanted: GenerationRequest) -> Iterator[str | OutputTrace]:
    for item in ports.need_decoder().stream(wanted):
        if isinstance(item, str | OutputTrace):
            yield item


def _events(items: Iterator[str | OutputTrace]) -> Iterator[ServerSentEventMessage]:
    try:
        for item in items:
            said = ("piece", item) if isinstance(item, str) else ("done", _href(item))
            yield _event(*said)
    except Exception as error:  # noqa: BLE001 - the status is already sent, so an event and the log report it
        yield _event("problem", problem_of(error)[0].detail)


def _event(name: str, said: str) -> ServerSentEventMessage:
    return ServerSentEventMessage(event=name, data=msgspec.json.encode(said).decode())


def _href(trace: OutputTrace) -> str:
    return f"/console/ask?output={trace.generation_id}"


def _show(ports: Ports, request: PageRequest, form: Form, answered: Answer | None = None) -> Page:
    shown = shown_to(request, ports)
    found: dict[str, Any] = {"trace": None, "is_answer": False, "pieces": [], "evidence": None}
    output, ordinal = form.integer("output"), form.integer("splice", low=0)
    if output is not None:
        found = output_and_evidence(ports, shown, output, ordinal)
    keyset = active_keyset(ports)
    return form_page(
        request,
        "ask.html",
        form,
        modes=MODES,
        max_tokens=MAX_TOKENS,
        keyset=keyset,
        can_answer=ports.generator_loaded and keyset is not None,
        generator_loaded=ports.generator_loaded,
        earlier=shown.generations(limit=EARLIER),
        examples=_examples(ports),
        reader_loaded=ports.answers is not None,
        answered=answered,
        in_sentence=_in_sentence(answered) if answered else None,
        **found,
    )


def _at_likeliest(said: str, found: Answer) -> tuple[str, str, str] | None:
    """Cut the lines that are said at the likeliest words of the passage that was read for them."""
    for one in found.nearest:
        if one.source is None or found.source is None or one.likeliest_end is None:
            continue
        if one.source.document_id == found.source.document_id and one.source.start < found.source.end:
            words = one.text[one.likeliest_start : one.likeliest_end]
            before, there, behind = said.partition(words)
            if there:
                return before, there, behind
    return None


def _in_sentence(found: Answer) -> tuple[str, str, str] | None:
    """Cut the sentence that says a span's words: what is before them, the words, and what is behind them.

    A passage is cut at its likeliest words. None where no passage with them is shown.
    """
    if found.answer is None or found.source is None:
        return None
    if found.grain != SPAN:
        return _at_likeliest(found.answer, found)
    for one in found.nearest:
        if one.source is None or one.source.document_id != found.source.document_id:
            continue
        start = one.text.find(found.answer, max(0, found.source.start - one.source.start - _MOST_SHIFT))
        if start >= 0 and one.source.start <= found.source.start and found.source.end <= one.source.end:
            end = start + len(found.answer)
            first, last = sentence_around(sentence_ends(one.text), start, end)
            return one.text[first:start], found.answer, one.text[end:last]
    return None


def output_and_evidence(ports: Ports, shown: Shown, output: int, ordinal: int | None) -> dict[str, Any]:
    """Gives a stored output cut at its lookups, with the evidence of the one named, else of the first with a hit."""
    trace = shown.trace_output(output)
    cut = pieces(trace)
    looked_up = [piece for piece in cut if piece.splice]
    named = [piece for piece in looked_up if piece.splice and piece.splice.ordinal == ordinal]
    found = [piece for piece in looked_up if piece.number is not None]
    chosen = next(iter(named or found or looked_up), None)
    evidence = _evidence(ports, shown, trace, chosen) if chosen else None
    return {
        "trace": trace,
        "is_answer": trace.mode in answer_modes,
        "pieces": cut,
        "evidence": evidence,
        "became_of": became_of,
    }


def _evidence(ports: Ports, shown: Shown, trace: OutputTrace, piece: OutputPiece) -> LookupEvidence:
    splice = piece.splice
    assert splice is not None
    around = None
    if (source := splice.source) is not None:
        around = passage(shown.document_text(source.document_id), source.start, source.end)
    return LookupEvidence(splice, piece.number, became_of(splice), around, _nearest(ports, trace, splice))


def _nearest(
    ports: Ports, trace: OutputTrace, splice: TracedSplice
) -> Sequence[tuple[Hit, FactRecord | None]] | str:
    """Gives the other facts nearest to this lookup's query, in their present state, or the reason why it cannot."""
    try:
        hits = ports.kb.outputs.neighbours(trace.generation_id, splice.ordinal, NEAREST)
    except (KeysetMismatch, NoActiveKeyset):
        return "The keyset that this output looked facts up in is not active, so its neighbours cannot be asked for."
    if hits is None:
        return "This output was stored without its query, so its neighbours cannot be asked for."
    others = [hit for hit in hits if hit.fact_id != splice.fact_id][: NEAREST - 1]
    return [(hit, _known(ports, hit.fact_id)) for hit in others]


def _known(ports: Ports, fact_id: int) -> FactRecord | None:
    try:
        return ports.kb.facts.show(fact_id)
    except KBError:  # erased between the two reads
        return None


def _examples(ports: Ports) -> list[str]:
    """Gives a few questions that the base can answer, as examples for the form."""
    known = ports.kb.facts.find(limit=40)
    return list(dict.fromkeys(fact.question for fact in known if fact.question))[:3]


HANDLERS = (ask, read, answer, stream)
