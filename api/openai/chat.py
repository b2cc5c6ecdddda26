"""`/v1/chat/completions`: writes a conversation as a text that a base model can continue.

The model was trained on questions and answers, so a conversation is written in that form: first the system message, as
a paragraph; then each turn as ``Question: ...`` with ``Answer: ...`` on the next line, an empty line between turns, and
last ``Answer:`` for the model to continue. The answer ends where another question would begin. The space after
``Answer:`` is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.params import JSONBody

from colmlm.api.nouns.generation import ANSWER, Finished, GenerationRequest, Generator
from colmlm.api.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatMessage,
    Delta,
    citations,
    finish_reason,
    heading,
    usage,
)
from colmlm.api.openai.errors import DECODING
from colmlm.api.openai.models import require_model
from colmlm.api.openai.requests import ChatRequest, Message
from colmlm.api.openai.streams import chunks
from colmlm.api.ports import FromPorts, await_seen
from colmlm.kb.answers.records import NOTHING
from colmlm.kb.evidence.records import OutputTrace

NEXT_QUESTION = "\nQuestion:"


@post("/chat/completions", status_code=200, **DECODING)
def chat(
    ports: FromPorts, request: Request[Any, Any, Any], data: JSONBody[ChatRequest]
) -> Response[ChatCompletion]:
    """Answer a conversation.

    Answers its last question, stores the output, and cites the facts that were spliced.
    The model is a base model, so it reads the conversation as questions and answers. With `stream` the answer is
    `text/event-stream` of chunks, the last of which holds the citations, and then `[DONE]`.
    Where no fact stands behind an answer nothing is said: `content` is null and `refusal` says that nothing in the
    knowledge base answers. With `on_miss` "continue" the model answers in its own words.
    """
    generator = ports.need_generator()
    model = require_model(generator, data.model)
    data.refuse()
    decoding = data.decoding(as_text(data.messages), data.tokens, (*data.stops, NEXT_QUESTION))
    base_url = str(request.base_url)
    await_seen(ports, data.min_seq)
    if data.stream:
        return chunks(_chunks(generator, data, decoding, heading("chatcmpl", model), base_url))
    (done,) = generator.complete([decoding])
    assert done.trace is not None, "something was to be decoded"
    shift = _shift(done.trace.output)
    refusal = _refusal(decoding, done.trace)
    choice = ChatChoice(
        index=0,
        message=ChatMessage(
            role="assistant", content=None if refusal else done.trace.output[-shift:], refusal=refusal
        ),
        finish_reason=finish_reason(done.finished),
        generation_id=done.trace.generation_id,
        citations=citations(done.trace, base_url, shift=shift),
    )
    return Response(
        ChatCompletion(
            **heading("chatcmpl", model),
            choices=[choice],
            usage=usage([done.finished]),
            citations=choice.citations,
        )
    )


def as_text(messages: Sequence[Message]) -> str:
    """Writes a conversation as the text that the model reads."""
    parts = []
    for message in messages:
        match message.role:
            case "user":
                parts.append(f"Question: {message.text}\n{ANSWER}")
            case "assistant":
                parts.append(f" {message.text}\n\n")
            case _:
                parts.append(f"{message.text}\n\n")
    return "".join(parts)


def _chunks(
    generator: Generator,
    data: ChatRequest,
    decoding: GenerationRequest,
    fields: dict[str, Any],
    base_url: str,
) -> Iterator[ChatChunk]:
    """Yields the role, the text as it is decoded, the finish reason with the citations, and the usage if wanted.

    In place of the text it yields the refusal, where nothing is said.
    """
    shift, took = None, Finished(reason="length", prompt_tokens=0, completion_tokens=0)
    for item in generator.stream(decoding):
        if isinstance(item, str):
            if shift is None:
                yield _chunk(fields, Delta(role="assistant", content=""))
                shift = _shift(item)
                item = item[-shift:]
            if item:
                yield _chunk(fields, Delta(content=item))
        elif isinstance(item, Finished):
            took = item
        elif isinstance(item, OutputTrace):
            if refusal := _refusal(decoding, item):
                yield _chunk(fields, Delta(role="assistant", refusal=refusal))
            found = citations(item, base_url, shift=shift or 0)
            ended = ChatChunkChoice(
                index=0,
                delta=Delta(),
                finish_reason=finish_reason(took),
                generation_id=item.generation_id,
                citations=found,
            )
            yield ChatChunk(**fields, choices=[ended], citations=found)
            if data.wants_usage:
                yield ChatChunk(**fields, choices=[], usage=usage([took]), citations=found)


def _chunk(fields: dict[str, Any], delta: Delta) -> ChatChunk:
    return ChatChunk(**fields, choices=[ChatChunkChoice(index=0, delta=delta)])


def _refusal(decoding: GenerationRequest, trace: OutputTrace) -> str | None:
    """Says that nothing answers where the output abstained; None where it says something, or was to continue."""
    return NOTHING if decoding.abstains and trace.abstained else None


def _shift(output: str) -> int:
    """Gives the offset of an output within the answer: -1 where the space after ``Answer:`` is left out."""
    return -1 if output.startswith(" ") else 0
