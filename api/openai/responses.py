"""`/v1/responses`: answers a question or a conversation in the newer of OpenAI's protocols."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.openai.answers import Citation, citations, finish_reason, url_citation
from colmlm.api.openai.chat import Nothing, NoTool, TextFormat, refuse_tools
from colmlm.api.openai.fields import (
    CHAT_TOKENS,
    DECODING,
    NEXT_QUESTION,
    DecodingFields,
    Message,
    Messages,
    Most,
    NoList,
    Text,
    Unsupported,
    as_text,
    named_events,
    refusal_of,
    refuse_unanswerable,
    shift_of,
)
from colmlm.api.openai.models import require_model
from colmlm.api.ports import FromPorts, await_seen
from colmlm.kb.evidence.generation import CompletedRequest, FinishedOutput, GenerationRequest, Generator
from colmlm.kb.evidence.records import OutputTrace


@post("/responses", status_code=200, **DECODING)
def respond(
    ports: FromPorts, request: Request[Any, Any, Any], data: JSONBody[ResponseRequest]
) -> Response[AnsweredResponse]:
    """Respond to a question.

    Answers a question or the last one of a conversation as `/v1/chat/completions` does. The citations are annotations
    of the text. Where no fact stands behind an answer, its one part is a refusal. With `stream` the answer is
    `text/event-stream` of OpenAI's events. A response is not kept by its id; the output is, by its `generation_id`.
    """
    generator = ports.need_generator()
    model = require_model(generator.model, data.model)
    decoding, base_url = data.request(), str(request.base_url)
    await_seen(ports, data.min_seq)
    response = begin_response(data, model, int(time.time()))
    if data.stream:
        return named_events(_events(generator, decoding, response, base_url))
    (done,) = generator.complete([decoding])
    return Response(_answered_response(response, decoding, done, base_url))


def _answered_response(
    response: AnsweredResponse, decoding: GenerationRequest, done: CompletedRequest, base_url: str
) -> AnsweredResponse:
    assert done.trace is not None, "something was to be decoded"
    shift = shift_of(done.trace.output)
    cited = citations(done.trace, base_url, shift=shift)
    part = output_part(done.trace.output[-shift:], refusal_of(decoding, done.trace), cited)
    return complete_response(response, part, done.finished, done.trace, cited)


def _events(
    generator: Generator, decoding: GenerationRequest, response: AnsweredResponse, base_url: str
) -> Iterator[Told]:
    """Yield the events of a response while it is decoded; its one part begins with the first piece of text."""
    events = ResponseEvents(response)
    said, shift, took = "", None, FinishedOutput(reason="length", prompt_tokens=0, completion_tokens=0)
    for item in generator.stream(decoding):
        yield from events.begin()
        if isinstance(item, str):
            if shift is None:
                shift = shift_of(item)
                item = item[-shift:]
            said += item
            yield from events.text(item)
        elif isinstance(item, FinishedOutput):
            took = item
        elif isinstance(item, OutputTrace):
            cited = citations(item, base_url, shift=shift or 0)
            part = output_part(said, refusal_of(decoding, item), cited)
            yield from events.end(part, complete_response(response, part, took, item, cited))


# The events of a streamed response, numbered in their order.

Told = dict[str, Any]


class ResponseEvents:
    """The events of a streamed response: its beginning, its text, its citations, and its end.

    All of them concern one part of one message, whose ids do not change.
    """

    def __init__(self, response: AnsweredResponse) -> None:
        self._response = response
        self._num_told = 0
        self._is_open = False  # whether the part was begun

    def begin(self) -> Iterator[Told]:
        """Yield the events with which a response begins; none after the first call."""
        if not self._num_told:
            yield self._event("response.created", response=self._response)
            yield self._event("response.in_progress", response=self._response)
            item = message(self._response, "in_progress")
            yield self._event("response.output_item.added", output_index=0, item=item)

    def text(self, piece: str) -> Iterator[Told]:
        """Yield the event of a piece of text, and before the first piece the event that begins the part."""
        yield from self._open(OutputText(text=""))
        if piece:
            yield self._of_part("response.output_text.delta", delta=piece, logprobs=[])

    def end(self, part: OutputPart, response: AnsweredResponse) -> Iterator[Told]:
        """Yield the events of the citations, and of the finished part, message and response."""
        if isinstance(part, OutputRefusal):
            yield from self._open(OutputRefusal(refusal=""))
            yield self._of_part("response.refusal.delta", delta=part.refusal)
            yield self._of_part("response.refusal.done", refusal=part.refusal)
        else:
            yield from self._open(OutputText(text=""))
            for number, cited in enumerate(part.annotations):
                yield self._of_part(
                    "response.output_text.annotation.added", annotation_index=number, annotation=cited
                )
            yield self._of_part("response.output_text.done", text=part.text, logprobs=[])
        yield self._of_part("response.content_part.done", part=part)
        yield self._event("response.output_item.done", output_index=0, item=response.output[0])
        yield self._event(f"response.{response.status}", response=response)

    def _open(self, part: OutputPart) -> Iterator[Told]:
        if not self._is_open:
            self._is_open = True
            yield self._of_part("response.content_part.added", part=part)

    def _of_part(self, kind: str, **fields: Any) -> Told:
        item_id = message(self._response, "in_progress").id
        return self._event(kind, item_id=item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Told:
        number, self._num_told = self._num_told, self._num_told + 1
        return {
            "type": kind,
            "sequence_number": number,
            **{name: msgspec.to_builtins(value) for name, value in fields.items()},
        }


# The body of a request to `/v1/responses`, in its basic form: text in, text out, and nothing kept between
# requests.

# What an answer may be asked to include of which there is none here.
NONE_OF_THEM = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
Include = Annotated[list[str], Meta(extra_json_schema={"items": {"enum": list(NONE_OF_THEM)}})]
Off = Annotated[bool, Meta(extra_json_schema={"enum": [False]})]


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Choose how the text is to be written. `verbosity` is read over."""

    format: TextFormat | None = None
    verbosity: Text | None = None


class ResponseRequest(DecodingFields, frozen=True, kw_only=True):
    """A question, or a conversation whose last message is the user's, with `instructions` before it.

    `reasoning` and `truncation` are read over: the model does not reason, and a prompt that is too long is refused.
    """

    input: str | Messages
    instructions: str | None = None
    max_output_tokens: Most | None = None
    text: TextOptions | None = None
    tools: NoList | None = None
    tool_choice: NoTool = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None
    include: Include | None = None
    background: Off | None = None
    previous_response_id: Nothing = None
    conversation: Nothing = None
    prompt: Nothing = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None

    def request(self) -> GenerationRequest:
        """Give the generation request. Raise `Unsupported`."""
        self._refuse()
        most = self.max_output_tokens or CHAT_TOKENS
        return self.decoding(as_text(self._messages()), most, (NEXT_QUESTION,))

    def _messages(self) -> list[Message]:
        lead = [Message(role="system", content=self.instructions)] if self.instructions else []
        said = [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        return [*lead, *said]

    def _refuse(self) -> None:
        self.refuse_unsupported()
        refuse_tools("tools", self.tools, self.tool_choice)
        if self.text is not None and self.text.format not in (None, {"type": "text"}):
            raise Unsupported("text.format", "the model writes only text")
        for wanted in self.include or ():
            if wanted not in NONE_OF_THEM:
                raise Unsupported("include", f"{wanted!r} cannot be included. Citations always are")
        if self.background:
            raise Unsupported(
                "background", "the server cannot answer in the background. Leave it out, or set stream"
            )
        for field in ("previous_response_id", "conversation", "prompt"):
            if getattr(self, field) is not None:
                raise Unsupported(
                    field, "the server keeps nothing between requests. Send the whole conversation as input"
                )
        refuse_unanswerable("input", self._messages())


# The objects of `/v1/responses`: a response with one message, whose citations are annotations of its text.


class TextCitation(msgspec.Struct, frozen=True, kw_only=True):
    """Record where a value stands in the text, in code points, and the document, or else the trace, that it was read
    from.
    """

    start_index: int
    end_index: int
    url: str
    title: str
    type: str = "url_citation"


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    """Record what the model says, with its citations."""

    text: str
    annotations: list[TextCitation] = []
    logprobs: list[None] = []


class OutputRefusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """Tell that the knowledge base has no sure answer."""

    refusal: str


OutputPart = OutputText | OutputRefusal


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: str
    content: list[OutputPart]
    role: str = "assistant"
    type: str = "message"


class CachedTokens(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int = 0


class ReasoningTokens(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a response. `output_tokens` are those that the model chose; spliced tokens are not counted."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens = CachedTokens()
    output_tokens_details: ReasoningTokens = ReasoningTokens()


class Incomplete(msgspec.Struct, frozen=True, kw_only=True):
    """Record why a response is incomplete."""

    reason: str


class AnsweredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it is at this moment: in progress, completed, or incomplete where the most tokens were said.

    `generation_id` is the stored output, and `citations` tell of its facts all that is known.
    """

    id: str
    created_at: int
    model: str
    status: str
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    metadata: dict[str, str]
    output: list[OutputMessage] = []
    usage: ResponseUsage | None = None
    incomplete_details: Incomplete | None = None
    error: None = None
    previous_response_id: None = None
    parallel_tool_calls: bool = False
    tool_choice: str = "none"
    tools: list[None] = []
    truncation: str = "disabled"
    generation_id: int | None = None
    citations: list[Citation] = []
    object: str = "response"


def begin_response(data: ResponseRequest, model: str, created_at: int) -> AnsweredResponse:
    """Make the response to this request, still without output."""
    return AnsweredResponse(
        id=f"resp_{secrets.token_hex(12)}",
        created_at=created_at,
        model=model,
        status="in_progress",
        instructions=data.instructions,
        max_output_tokens=data.max_output_tokens,
        temperature=1.0 if data.temperature is None else data.temperature,
        top_p=1.0 if data.top_p is None else data.top_p,
        metadata=data.metadata or {},
    )


def message(response: AnsweredResponse, status: str, *content: OutputPart) -> OutputMessage:
    """Give the one message of a response, with this status and content."""
    return OutputMessage(id=response.id.replace("resp_", "msg_"), status=status, content=list(content))


def complete_response(
    response: AnsweredResponse,
    part: OutputPart,
    took: FinishedOutput,
    trace: OutputTrace,
    cited: list[Citation],
) -> AnsweredResponse:
    """Add the stored output to the response, with its usage and citations."""
    is_cut = finish_reason(took) == "length"
    status = "incomplete" if is_cut else "completed"
    changes: dict[str, Any] = {
        "status": status,
        "output": [message(response, status, part)],
        "usage": ResponseUsage(
            input_tokens=took.prompt_tokens,
            output_tokens=took.completion_tokens,
            total_tokens=took.prompt_tokens + took.completion_tokens,
        ),
        "incomplete_details": Incomplete(reason="max_output_tokens") if is_cut else None,
        "generation_id": trace.generation_id,
        "citations": cited,
    }
    return msgspec.structs.replace(response, **changes)


def output_part(said: str, refusal: str | None, cited: list[Citation]) -> OutputPart:
    if refusal:
        return OutputRefusal(refusal=refusal)
    return OutputText(text=said, annotations=[text_citation(one) for one in cited])


def text_citation(cited: Citation) -> TextCitation:
    return msgspec.convert(url_citation(cited), TextCitation, from_attributes=True)


HANDLERS = (respond,)
