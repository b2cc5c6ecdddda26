"""Outputs: ask questions and decode prompts, read what was stored with its evidence, judge it, and audit the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import msgspec
from litestar import Response, get, post
from litestar.response import Redirect, ServerSentEvent, ServerSentEventMessage

from colmlm.api.console.operations import active_keyset
from colmlm.api.console.views import (
    Form,
    FromForm,
    OutputPiece,
    Page,
    PageRequest,
    SpanPassage,
    became_of,
    corpus_options,
    form_page,
    page,
    passage,
    pieces,
    show_again,
)
from colmlm.api.errors import problem_of
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, needs
from colmlm.api.ports import FromPorts, Ports, QuestionEncoder
from colmlm.api.routes.parameters import PathId, shown_to
from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.answers.records import SPAN, Answer
from colmlm.kb.errors import KBError, KeysetMismatch, NoActiveKeyset, refusals
from colmlm.kb.evidence.generation import GenerationRequest
from colmlm.kb.evidence.records import Impact, NewFeedback, OutputTrace, Thumb, TracedSplice
from colmlm.kb.evidence.shown import CallerView
from colmlm.kb.evidence.storing import MOST_CHARACTERS
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.log import audit
from colmlm.kb.log.chain import KEPT
from colmlm.kb.lookup.options import RANKINGS
from colmlm.kb.lookup.records import AsOfLookup, Hit, Lookup
from colmlm.kb.principal import as_service
from colmlm.kb.tables import answer_modes, thumbs
from colmlm.kb.texts.sentences import sentence_around, sentence_ends

MODES = ("auto", "forced", "off")
ON_MISS = ("", "abstain", "continue")
ANY_RANKING = ("", *RANKINGS)
MAX_TOKENS = 512
MOST_NEIGHBOURS = 6
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


def _read_generation_request(form: Form) -> GenerationRequest:
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
        corpora=_corpora_of(form),
    )


def _corpora_of(form: Form) -> tuple[str, ...]:
    corpus = form.raw("corpus")
    return (corpus,) if corpus else ()


def _decode(ports: Ports, wanted: GenerationRequest) -> Iterator[str | OutputTrace]:
    for item in ports.need_decoder().stream(wanted):
        if isinstance(item, str | OutputTrace):
            yield item


def _stream_events(items: Iterator[str | OutputTrace]) -> Iterator[ServerSentEventMessage]:
    try:
        for item in items:
            said = ("piece", item) if isinstance(item, str) else ("done", _locate_output(item))
            yield _write_event(*said)
    except Exception as error:  # noqa: BLE001 - the status is already sent, so an event and the log report it
        yield _write_event("problem", problem_of(error)[0].detail)


def _write_event(name: str, said: str) -> ServerSentEventMessage:
    return ServerSentEventMessage(event=name, data=msgspec.json.encode(said).decode())


def _locate_output(trace: OutputTrace) -> str:
    return f"/console/ask?output={trace.generation_id}"


def _show_ask_page(ports: Ports, request: PageRequest, form: Form, answered: Answer | None = None) -> Page:
    shown = shown_to(request, ports)
    found: dict[str, Any] = {"trace": None, "is_answer": False, "pieces": [], "evidence": None}
    output, ordinal = form.integer("output"), form.integer("splice", low=0)
    if output is not None:
        found = describe_output(ports, shown, output, ordinal)
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
        examples=_find_examples(ports),
        reader_loaded=ports.answers is not None,
        answered=answered,
        corpora=corpus_options(ports),
        in_sentence=_cut_sentence(answered) if answered else None,
        **found,
    )


def _cut_likeliest(said: str, found: Answer) -> tuple[str, str, str] | None:
    """Cut a passage into the text before its likeliest words, these words, and the rest; None if it has none."""
    for one in found.nearest:
        if one.source is None or found.source is None or one.likeliest_end is None:
            continue
        if one.source.document_id == found.source.document_id and one.source.start < found.source.end:
            words = one.text[one.likeliest_start : one.likeliest_end]
            before, there, behind = said.partition(words)
            if there:
                return before, there, behind
    return None


def _cut_sentence(found: Answer) -> tuple[str, str, str] | None:
    """Cut the sentence around an answer into the words before it, the answer, and the words behind it.

    An answer that is a passage is cut at its likeliest words. None if no shown passage has the answer.
    """
    if found.answer is None or found.source is None:
        return None
    if found.grain != SPAN:
        return _cut_likeliest(found.answer, found)
    for one in found.nearest:
        if one.source is None or one.source.document_id != found.source.document_id:
            continue
        start = one.text.find(found.answer, max(0, found.source.start - one.source.start - _MOST_SHIFT))
        if start >= 0 and one.source.start <= found.source.start and found.source.end <= one.source.end:
            end = start + len(found.answer)
            first, last = sentence_around(sentence_ends(one.text), start, end)
            return one.text[first:start], found.answer, one.text[end:last]
    return None


def describe_output(ports: Ports, shown: CallerView, output: int, ordinal: int | None) -> dict[str, Any]:
    """Give a stored output cut at its lookups, with the evidence of lookup `ordinal`, else of the first with a hit."""
    trace = shown.trace_output(output)
    cut = pieces(trace)
    looked_up = [piece for piece in cut if piece.splice]
    named = [piece for piece in looked_up if piece.splice and piece.splice.ordinal == ordinal]
    found = [piece for piece in looked_up if piece.number is not None]
    chosen = next(iter(named or found or looked_up), None)
    evidence = _collect_evidence(ports, shown, trace, chosen) if chosen else None
    return {
        "trace": trace,
        "is_answer": trace.mode in answer_modes,
        "pieces": cut,
        "evidence": evidence,
        "became_of": became_of,
    }


def _collect_evidence(
    ports: Ports, shown: CallerView, trace: OutputTrace, piece: OutputPiece
) -> LookupEvidence:
    splice = piece.splice
    assert splice is not None
    around = None
    if (source := splice.source) is not None:
        around = passage(shown.document_text(source.document_id), source.start, source.end)
    return LookupEvidence(
        splice, piece.number, became_of(splice), around, _find_neighbours(ports, trace, splice)
    )


def _find_neighbours(
    ports: Ports, trace: OutputTrace, splice: TracedSplice
) -> Sequence[tuple[Hit, FactRecord | None]] | str:
    """Give the other facts nearest to this lookup's query, as they are now, or the reason why there are none."""
    try:
        hits = ports.kb.outputs.neighbours(trace.generation_id, splice.ordinal, MOST_NEIGHBOURS)
    except (KeysetMismatch, NoActiveKeyset):
        return "The keyset that this output looked facts up in is not active, so its neighbours cannot be asked for."
    if hits is None:
        return "This output was stored without its query, so its neighbours cannot be asked for."
    others = [hit for hit in hits if hit.fact_id != splice.fact_id][: MOST_NEIGHBOURS - 1]
    return [(hit, _find_fact(ports, hit.fact_id)) for hit in others]


def _find_fact(ports: Ports, fact_id: int) -> FactRecord | None:
    try:
        return ports.kb.facts.show(fact_id)
    except KBError:  # erased between the two reads
        return None


def _find_examples(ports: Ports) -> list[str]:
    """Give a few questions that the base can answer, as examples for the form."""
    known = ports.kb.facts.find(limit=40)
    return list(dict.fromkeys(fact.question for fact in known if fact.question))[:3]


@get("/ask", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)
def show_ask(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the forms, with the output and the lookup that the query string names."""
    return _show_ask_page(ports, request, form)


@post(
    "/ask/answer",
    opt=needs(Right.read, Limiter.reading, CorpusLimit.rows),
    status_code=200,
    sync_to_thread=True,
)
@show_again(_show_ask_page)
def answer_question(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Answer the question, store the answer, and show it with the passages near it, which are not stored."""
    question = form.text("question", limit=MAX_QUESTION)
    form.check()
    with as_service():  # the filter limits what is found
        answered = ports.need_answers().answer(
            question, accepted_only=form.flag("accepted_only"), corpora=_corpora_of(form)
        )
    return _show_ask_page(ports, request, form, answered)


@post("/ask", opt=needs(Right.read, Limiter.decoding, CorpusLimit.rows), sync_to_thread=True)
@show_again(_show_ask_page)
def decode_prompt(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Decode the prompt, store the output, and redirect to it."""
    wanted = _read_generation_request(form)
    with as_service():
        trace = ports.need_decoder().generate(wanted)
    return Redirect(_locate_output(trace), status_code=303)


@post(
    "/ask/stream",
    opt=needs(Right.read, Limiter.decoding, CorpusLimit.filter),
    status_code=200,
    sync_to_thread=True,
)
def stream_prompt(ports: FromPorts, form: FromForm) -> Response[Any]:
    """Decode the prompt for the page's script: send `piece` events as the text is decoded, then `done` with the
    output's address.
    """
    wanted = _read_generation_request(form)
    items = _decode(ports, wanted)
    first = next(items)  # an error raised here still gets its own status
    events: Response[Any] = ServerSentEvent(_stream_events(chain([first], items)))
    return events


# Audit: the change log and its verification, stored outputs, uses of a fact, lookups as of a change, and denials.

ON_A_PAGE = 50
MOST_COMPARED = 5


def _look_up_then_and_now(ports: Ports, question: str, seq: int) -> tuple[AsOfLookup, Lookup]:
    def ask(encoder: QuestionEncoder) -> tuple[AsOfLookup, Lookup]:
        asked: dict[str, Any] = {
            "queries_BD": encoder.encode_questions([question]),
            "checkpoint_id": encoder.checkpoint.checkpoint_id,
            "k": MOST_COMPARED,
        }
        (now,) = ports.kb.lookups.find(**asked)
        (then,) = ports.kb.lookups.as_of(seq).find(**asked)
        return then, now

    return ports.ask_with_encoder(ask)


@get("/audit", opt=needs(Right.audit, scoped=CorpusLimit.rows), sync_to_thread=True)
def show_log(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show the change log, newest first, with the filters of the query string."""
    changes, head, end, report = [], ports.kb.log.head_seq(), None, None
    try:
        fitting: dict[str, Any] = {
            "actor": form.optional("actor", limit=200),
            "principal": form.optional("principal", limit=200),
            "kind": form.optional("kind", limit=50),
            "fact_id": form.integer("fact"),
            "since": form.moment("since"),
            "until": form.moment("until"),
        }
        before = form.integer("before") or head + 1
        form.check()
        changes = ports.kb.log.changes_before(before, ON_A_PAGE + 1, **fitting)
        end = ports.kb.log.find_change_hash(head)
        if form.flag("check") and request.user.corpora is not None:
            raise refusals.needs_all_corpora(request.user.corpora)  # who sees some changes sees no chain
        report = ports.kb.log.verify() if form.flag("check") else None
    except KBError as error:
        form.refuse(error)
    return form_page(
        request,
        "audit.html",
        form,
        changes=changes[:ON_A_PAGE],
        more=changes[ON_A_PAGE - 1].seq if len(changes) > ON_A_PAGE else None,
        kinds=[(kind, kind) for kind in audit.KINDS],
        last=head,
        end=end,
        report=report,
    )


@get("/audit/outputs", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)
def list_outputs(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show stored outputs, newest first, or those with a thumb."""
    after, thumb = (
        form.integer("after", low=0) or 0,
        cast(Thumb | None, form.choice("thumb", ("", *thumbs)) or None),
    )
    found = shown_to(request, ports).generations(after=after, limit=ON_A_PAGE + 1, thumb=thumb)
    more = found[ON_A_PAGE - 1].generation_id if len(found) > ON_A_PAGE else None
    return page(request, "outputs.html", outputs=found[:ON_A_PAGE], more=more, thumb=thumb)


@get("/audit/outputs/{output_id:int}", opt=needs(Right.read, scoped=CorpusLimit.rows), sync_to_thread=True)
def read_output(ports: FromPorts, request: PageRequest, output_id: PathId, form: FromForm) -> Page:
    """Show a stored output with the evidence of one of its lookups."""
    ordinal = form.integer("splice", low=0)
    return page(
        request, "output.html", **describe_output(ports, shown_to(request, ports), output_id, ordinal)
    )


@get("/audit/impact", opt=needs(Right.audit, Limiter.long_reads, CorpusLimit.rows), sync_to_thread=True)
def show_impact(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show every stored output that a fact was spliced into."""
    found: Impact | None = None
    fact: FactRecord | None = None
    try:
        fact_id = form.integer("fact")
        form.check()
        if fact_id is not None:
            found, fact = ports.kb.outputs.impact(fact_id), ports.kb.facts.show(fact_id)
    except KBError as error:
        form.refuse(error)
    return form_page(request, "impact.html", form, impact=found, fact=fact)


@get("/audit/time", opt=needs(Right.audit, Limiter.long_reads), sync_to_thread=True)
def show_time(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show which facts a question found as of a change, and which it finds now."""
    head = ports.kb.log.head_seq()
    shown: dict[str, Any] = {"then": None, "now": None, "difference": None, "change": None}
    seq: int | None = head
    try:
        question = form.optional("question", limit=2000)
        seq = form.integer("seq", low=0)
        form.check()
        seq = head if seq is None else seq
        shown["difference"] = ports.kb.log.diff(seq, head, limit=20)
        shown["change"] = next(iter(ports.kb.log.changes(after=seq - 1, limit=1)), None) if seq else None
        if question is not None:
            shown["then"], shown["now"] = _look_up_then_and_now(ports, question, seq)
    except KBError as error:
        form.refuse(error)
    return form_page(request, "time.html", form, last=head, seq=seq, **shown)


@get("/audit/denials", opt=needs(Right.audit), sync_to_thread=True)
def list_denials(ports: FromPorts, request: PageRequest, form: FromForm) -> Page:
    """Show denied requests, newest first."""
    after = form.integer("after", low=0) or 0
    found = ports.kb.log.denials(after=after, limit=ON_A_PAGE + 1)
    more = found[ON_A_PAGE - 1].denial_id if len(found) > ON_A_PAGE else None
    return page(request, "denials.html", denials=found[:ON_A_PAGE], more=more, kept=KEPT.days)


# Judging: says whether an output is right, and leads from a wrong one to the facts behind it, or to adding one.


def show_judgement(ports: FromPorts, request: PageRequest, output_id: PathId, form: FromForm) -> Page:
    trace = shown_to(request, ports).trace_output(output_id)
    said = [one for one in trace.feedback if one.actor == request.user.name]
    behind = {one.fact_id: one for one in trace.splices if one.fact_id is not None}
    return form_page(
        request,
        "output_wrong.html",
        form,
        trace=trace,
        behind=list(behind.values()),
        proposed=said[-1].value if said else None,
    )


@post("/audit/outputs/{output_id:int}/right", opt=needs(Right.read, Limiter.records), sync_to_thread=True)
def judge_right(ports: FromPorts, request: PageRequest, output_id: PathId) -> Page:
    """Give an output a thumb up, and show it."""
    ports.kb.outputs.give_feedback(output_id, NewFeedback("up"), actor=request.user.name)
    return Redirect(f"/console/audit/outputs/{output_id}", status_code=303)


@post("/audit/outputs/{output_id:int}/wrong", opt=needs(Right.read, Limiter.records), sync_to_thread=True)
@show_again(show_judgement)
def judge_wrong(ports: FromPorts, request: PageRequest, output_id: PathId, form: FromForm) -> Page:
    """Give an output a thumb down, and show what stands behind it."""
    made = NewFeedback(
        "down",
        form.optional("comment", limit=MOST_CHARACTERS),
        form.optional("value", limit=MOST_CHARACTERS),
    )
    form.check()
    ports.kb.outputs.give_feedback(output_id, made, actor=request.user.name)
    return Redirect(f"/console/audit/outputs/{output_id}/wrong?noted=yes", status_code=303)


HANDLERS = (
    show_ask,
    answer_question,
    decode_prompt,
    stream_prompt,
    show_log,
    list_outputs,
    read_output,
    show_impact,
    show_time,
    list_denials,
    judge_right,
    get("/audit/outputs/{output_id:int}/wrong", opt=needs(Right.read), sync_to_thread=True)(show_judgement),
    judge_wrong,
)
