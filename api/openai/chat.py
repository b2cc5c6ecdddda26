"""`/v1/chat/completions`: answers the last question of a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from litestar import Request, Response, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatMessage,
    Citation,
    Delta,
    annotated,
    chat_logprobs,
    citations,
    finish_reason,
    heading,
    usage,
)
from colmlm.api.openai.errors import DECODING, Unsupported
from colmlm.api.openai.fields import (
    CHAT_TOKENS,
    MAX_TOP,
    NEXT_QUESTION,
    ChoiceFields,
    Messages,
    Most,
    NoList,
    Text,
    as_text,
    refusal_of,
    refuse_unanswerable,
    shift_of,
)
from colmlm.api.openai.models import require_model
from colmlm.api.openai.streams import chunks
from colmlm.api.ports import FromPorts, await_seen
from colmlm.kb.evidence.generation import Completed, Finished, GenerationRequest, Generator
from colmlm.kb.evidence.records import OutputTrace


@post("/chat/completions", status_code=200, **DECODING)
def chat(
    ports: FromPorts, request: Request[Any, Any, Any], data: JSONBody[ChatRequest]
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
        return chunks(_chunks(generator, data, decodings, heading("chatcmpl", model), base_url))
    done = generator.complete(decodings, data.top)
    choices = [_choice(index, one, data, decodings[index], base_url) for index, one in enumerate(done)]
    return Response(
        ChatCompletion(
            **heading("chatcmpl", model),
            choices=choices,
            usage=usage([one.finished for one in done]),
            citations=[citation for choice in choices for citation in choice.citations],
        )
    )


def _choice(
    index: int, done: Completed, data: ChatRequest, decoding: GenerationRequest, base_url: str
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
            annotations=annotated(cited),
        ),
        finish_reason=finish_reason(done.finished),
        generation_id=done.trace.generation_id,
        citations=cited,
        logprobs=None if data.top is None else chat_logprobs(done.output_logprobs, data.top),
    )


def _chunks(
    generator: Generator,
    data: ChatRequest,
    decodings: list[GenerationRequest],
    fields: dict[str, Any],
    base_url: str,
) -> Iterator[ChatChunk]:
    """Yields the chunks of one choice after another, and the usage if wanted."""
    took: list[Finished] = []
    cited: list[Citation] = []
    for index, decoding in enumerate(decodings):
        one = replace(decoding, seed=decoding.seed + index)  # as the choices of a batch are drawn
        for item in _pieces(generator, one, index, base_url):
            if isinstance(item, Finished):
                took.append(item)
                continue
            cited += item.citations
            yield ChatChunk(**fields, choices=[item], citations=item.citations)
    if data.wants_usage:
        yield ChatChunk(**fields, choices=[], usage=usage(took), citations=cited)


def _pieces(
    generator: Generator, decoding: GenerationRequest, index: int, base_url: str
) -> Iterator[ChatChunkChoice | Finished]:
    """Yields the role, the text as it is decoded, why it ended, and the finish reason with the citations.

    In place of the text it yields the refusal, where nothing is said.
    """
    shift, took = None, Finished(reason="length", prompt_tokens=0, completion_tokens=0)
    for item in generator.stream(decoding):
        if isinstance(item, str):
            if shift is None:
                yield ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
                shift = shift_of(item)
                item = item[-shift:]
            if item:
                yield ChatChunkChoice(index=index, delta=Delta(content=item))
        elif isinstance(item, Finished):
            took = item
            yield item
        elif isinstance(item, OutputTrace):
            if refusal := refusal_of(decoding, item):
                yield ChatChunkChoice(index=index, delta=Delta(role="assistant", refusal=refusal))
            found = citations(item, base_url, index=index, shift=shift or 0)
            yield ChatChunkChoice(
                index=index,
                delta=Delta(annotations=annotated(found) or None),
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
    """Raises `Unsupported` where tools are to be called. With the choice "none" they may be listed."""
    if choice not in UNFORCED or (tools and choice != "none"):
        raise Unsupported(
            field, "the model calls none; its lookups are its own. Leave them out, or choose none"
        )


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
        """Gives a generation request for each choice. Raises `Unsupported`."""
        self._refuse()
        tokens = self.max_completion_tokens or self.max_tokens or CHAT_TOKENS
        decoding = self.decoding(as_text(self.messages), tokens, (*self.stops, NEXT_QUESTION))
        return [replace(decoding, mode="off") if self.logprobs else decoding] * self.num_choices

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens are listed; None where no log-probabilities are wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def _refuse(self) -> None:
        self.refuse_unsupported()
        if self.logprobs:
            self.refuse_beside_logprobs()
        elif self.top_logprobs:
            raise Unsupported("top_logprobs", "they come with logprobs; set that, too")
        refuse_tools("tools", self.tools, self.tool_choice)
        refuse_tools("functions", self.functions, self.function_call)
        if self.response_format not in (None, {"type": "text"}):
            raise Unsupported("response_format", "only text is written")
        if set(self.modalities or ()) - {"text"} or self.audio is not None:
            raise Unsupported("modalities", "only text is written")
        if self.web_search_options is not None:
            raise Unsupported("web_search_options", "only the knowledge base is searched")
        refuse_unanswerable("messages", self.messages)
