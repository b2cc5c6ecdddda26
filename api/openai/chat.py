"""`/v1/chat/completions`: answers the last question of a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from litestar import Request, Response, post
from litestar.params import JSONBody

from colmlm.api.nouns.generation import Completed, Finished, GenerationRequest, Generator
from colmlm.api.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatMessage,
    Delta,
    finish_reason,
    heading,
    usage,
)
from colmlm.api.openai.chat_request import ChatRequest
from colmlm.api.openai.citations import Citation, annotated, citations
from colmlm.api.openai.conversation import refusal_of, shift_of
from colmlm.api.openai.errors import DECODING
from colmlm.api.openai.logprobs import chat_logprobs
from colmlm.api.openai.models import require_model
from colmlm.api.openai.streams import chunks
from colmlm.api.ports import FromPorts, await_seen
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
