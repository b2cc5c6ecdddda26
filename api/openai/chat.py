"""`/v1/chat/completions`: answers the last question of a conversation, and takes what people say of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from litestar import Request as Connection
from litestar import Response, post
from litestar.params import JSONBody, PathParameter
from msgspec import Meta

from colmlm.api.errors import Refused
from colmlm.api.middleware.auth import Limiter, Right, needs
from colmlm.api.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatMessage,
    Citation,
    Delta,
    annotations_of,
    chat_logprobs,
    citations,
    finish_reason,
    response_heading,
    usage,
)
from colmlm.api.openai.fields import (
    CHAT_TOKENS,
    DECODING,
    MAX_TOP,
    NEXT_QUESTION,
    ROUTE,
    ChoiceFields,
    Messages,
    Most,
    NoList,
    Text,
    Unsupported,
    as_text,
    chunks,
    refusal_of,
    refuse_unanswerable,
    shift_of,
)
from colmlm.api.openai.models import require_model
from colmlm.api.ports import FromPorts, await_seen
from colmlm.api.routes.parameters import WithToken, shown_to
from colmlm.api.wire import Request
from colmlm.kb.answers.records import NO_SURE_ANSWER
from colmlm.kb.evidence.generation import CompletedRequest, FinishedOutput, GenerationRequest, Generator
from colmlm.kb.evidence.records import NewFeedback, OutputTrace, Thumb


@post("/chat/completions", status_code=200, **DECODING)
def chat(
    ports: FromPorts, request: Connection[Any, Any, Any], data: JSONBody[ChatRequest]
) -> Response[ChatCompletion]:
    """Answer a conversation.

    Answers its last question, stores the output, and cites the facts that were spliced.
    The model is a base model, so it reads the conversation as questions and answers. With `stream` the answer is
    `text/event-stream` of chunks, the last of which holds the citations, and then `[DONE]`.
    Where no fact stands behind an answer nothing is said: `content` is null and `refusal` says that nothing in the
    knowledge base answers. With `on_miss` "continue" the model answers in its own words. With `logprobs` nothing is
    looked up.
    """
    generator = ports.need_generator()
    model = require_model(generator.model, data.model)
    decodings, base_url = data.decodings(), str(request.base_url)
    await_seen(ports, data.min_seq)
    if data.stream:
        return chunks(_chunks(generator, data, decodings, response_heading("chatcmpl", model), base_url))
    done = generator.complete(decodings, data.num_top_logprobs)
    choices = [_choice(index, one, data, decodings[index], base_url) for index, one in enumerate(done)]
    return Response(
        ChatCompletion(
            **response_heading("chatcmpl", model),
            choices=choices,
            usage=usage([one.finished for one in done]),
            citations=[citation for choice in choices for citation in choice.citations],
        )
    )


def _choice(
    index: int, done: CompletedRequest, data: ChatRequest, decoding: GenerationRequest, base_url: str
) -> ChatChoice:
    assert done.trace is not None, "something was to be decoded"
    shift, refusal = shift_of(done.trace.output), refusal_of(decoding, done.trace)
    cited = citations(done.trace, base_url, index=index, shift=shift)
    return ChatChoice(
        index=index,
        message=ChatMessage(
            role="assistant",
            content=None if refusal else done.trace.output[-shift:],
            refusal=refusal,
            annotations=annotations_of(cited),
        ),
        finish_reason=finish_reason(done.finished),
        generation_id=done.trace.generation_id,
        citations=cited,
        logprobs=None
        if data.num_top_logprobs is None
        else chat_logprobs(done.output_logprobs, data.num_top_logprobs),
    )


def _chunks(
    generator: Generator,
    data: ChatRequest,
    decodings: list[GenerationRequest],
    fields: dict[str, Any],
    base_url: str,
) -> Iterator[ChatChunk]:
    """Yield the chunks of one choice after another, and the usage if wanted."""
    took: list[FinishedOutput] = []
    cited: list[Citation] = []
    for index, decoding in enumerate(decodings):
        one = replace(decoding, seed=decoding.seed + index)  # as the choices of a batch are drawn
        for item in _pieces(generator, one, index, base_url):
            if isinstance(item, FinishedOutput):
                took.append(item)
                continue
            cited += item.citations
            yield ChatChunk(**fields, choices=[item], citations=item.citations)
    if data.wants_usage:
        yield ChatChunk(**fields, choices=[], usage=usage(took), citations=cited)


def _pieces(
    generator: Generator, decoding: GenerationRequest, index: int, base_url: str
) -> Iterator[ChatChunkChoice | FinishedOutput]:
    """Yield a choice's chunks: the role, the text as it is decoded, and the finish reason with the citations.

    The `FinishedOutput` comes before the last. If the output abstained, a refusal takes the place of the text.
    """
    shift, took = None, FinishedOutput(reason="length", prompt_tokens=0, completion_tokens=0)
    for item in generator.stream(decoding):
        if isinstance(item, str):
            if shift is None:
                yield ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
                shift = shift_of(item)
                item = item[-shift:]
            if item:
                yield ChatChunkChoice(index=index, delta=Delta(content=item))
        elif isinstance(item, FinishedOutput):
            took = item
            yield item
        elif isinstance(item, OutputTrace):
            if refusal := refusal_of(decoding, item):
                yield ChatChunkChoice(index=index, delta=Delta(role="assistant", refusal=refusal))
            found = citations(item, base_url, index=index, shift=shift or 0)
            yield ChatChunkChoice(
                index=index,
                delta=Delta(annotations=annotations_of(found) or None),
                finish_reason=finish_reason(took),
                generation_id=item.generation_id,
                citations=found,
            )


# The body of a chat request.

UNFORCED = ("none", "auto", None)
NoTool = Annotated[Any, Meta(extra_json_schema={"enum": list(UNFORCED)})]
_ONLY_TEXT = {
    "properties": {"type": {"type": "string", "enum": ["text"]}},
    "required": ["type"],
    "additionalProperties": False,
}
TextFormat = Annotated[dict[str, Any], Meta(extra_json_schema=_ONLY_TEXT)]
OnlyText = Annotated[list[str], Meta(extra_json_schema={"items": {"enum": ["text"]}})]
Nothing = Annotated[Any, Meta(extra_json_schema={"enum": [None]})]


def refuse_tools(field: str, tools: list[Any] | None, choice: Any) -> None:
    """Raise `Unsupported` where tools are to be called. With the choice "none" they may be listed."""
    if choice not in UNFORCED or (tools and choice != "none"):
        raise Unsupported(field, "the model cannot call tools. Leave them out, or choose none")


class ChatRequest(ChoiceFields, frozen=True, kw_only=True):
    """A conversation whose last message is the user's; `api.openai.fields` writes it as the text that the model
    reads.

    With `logprobs` nothing is looked up, as in a completion. `reasoning_effort`, `verbosity` and `prediction` are read
    over.
    """

    messages: Messages
    max_tokens: Most | None = None
    max_completion_tokens: Most | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    tools: NoList | None = None
    tool_choice: NoTool = None
    functions: NoList | None = None
    function_call: NoTool = None
    response_format: TextFormat | None = None
    modalities: OnlyText | None = None
    audio: Nothing = None
    web_search_options: Nothing = None
    reasoning_effort: Text | None = None
    verbosity: Text | None = None
    prediction: dict[str, Any] | None = None

    def decodings(self) -> list[GenerationRequest]:
        """Give a generation request for each choice. Raise `Unsupported`."""
        self._refuse()
        tokens = self.max_completion_tokens or self.max_tokens or CHAT_TOKENS
        decoding = self.decoding(as_text(self.messages), tokens, (*self.stops, NEXT_QUESTION))
        return [replace(decoding, mode="off") if self.logprobs else decoding] * self.num_choices

    @property
    def num_top_logprobs(self) -> int | None:
        """Give how many of the likeliest tokens are listed; None where no log-probabilities are wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def _refuse(self) -> None:
        self.refuse_unsupported()
        if self.logprobs:
            self.refuse_beside_logprobs()
        elif self.top_logprobs:
            raise Unsupported("top_logprobs", "it needs logprobs. Set logprobs too")
        refuse_tools("tools", self.tools, self.tool_choice)
        refuse_tools("functions", self.functions, self.function_call)
        if self.response_format not in (None, {"type": "text"}):
            raise Unsupported("response_format", "the model writes only text")
        if set(self.modalities or ()) - {"text"} or self.audio is not None:
            raise Unsupported("modalities", "the model writes only text")
        if self.web_search_options is not None:
            raise Unsupported("web_search_options", "the model searches only the knowledge base")
        refuse_unanswerable("messages", self.messages)


# `POST /v1/chat/completions/{id}`: OpenAI's way to change the metadata of a stored completion, here its feedback.
# The id is the `generation_id` of the choice, since a completion's own id is made before anything is stored.

CompletionId = Annotated[str, PathParameter(max_length=300)]
MetadataText = Annotated[str, Meta(min_length=1, max_length=512)]  # as long as OpenAI has it


@Refused.coded("CompletionNotFound", "No such completion", status=404)
def completion_not_found(asked: str) -> str:
    return (
        f"No completion {asked!r} is stored. Nothing was changed. Use the `generation_id` in `choices` of the answer, "
        "or list the outputs with `colmlm trace outputs`."
    )


class FeedbackMetadata(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The keys that are kept of a completion's metadata: a thumb, a comment, and the value that would be right."""

    feedback: Thumb
    comment: MetadataText | None = None
    value: MetadataText | None = None


class CompletionUpdate(Request, frozen=True, kw_only=True):
    metadata: FeedbackMetadata


class JudgedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Record what a stored completion says. Why its model stopped is not stored."""

    message: ChatMessage
    generation_id: int
    index: int = 0
    finish_reason: str = "stop"
    logprobs: None = None


class JudgedCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A stored completion with its feedback as metadata."""

    id: str
    created: int
    model: str
    choices: list[JudgedChoice]
    metadata: FeedbackMetadata
    object: str = "chat.completion"


@post(
    "/chat/completions/{completion_id:str}",
    status_code=200,
    **ROUTE | {"opt": needs(Right.read, Limiter.records)},
)
def update_completion(
    ports: FromPorts, request: WithToken, completion_id: CompletionId, data: JSONBody[CompletionUpdate]
) -> JudgedCompletion:
    """Say whether a completion is right.

    Its `metadata` holds a thumb as `feedback`, and perhaps a `comment` and the `value` that would be right. The id is
    the `generation_id` of its choice.
    """
    generation_id, said = _generation_id(completion_id), data.metadata
    made = NewFeedback(said.feedback, said.comment, said.value)
    ports.kb.outputs.give_feedback(generation_id, made, actor=request.user.name)
    return _judged_completion(shown_to(request, ports).trace_output(generation_id), said)


def _generation_id(completion_id: str) -> int:
    if len(completion_id) < 20 and completion_id.isascii() and completion_id.isdecimal():
        return int(completion_id)
    raise completion_not_found(completion_id)


def _judged_completion(trace: OutputTrace, said: FeedbackMetadata) -> JudgedCompletion:
    message = ChatMessage(
        role="assistant", content=trace.output or None, refusal=NO_SURE_ANSWER if trace.abstained else None
    )
    return JudgedCompletion(
        id=str(trace.generation_id),
        created=int(trace.at.timestamp()),
        model=trace.checkpoint_id,
        choices=[JudgedChoice(message=message, generation_id=trace.generation_id)],
        metadata=said,
    )


HANDLERS = (chat, update_completion)
