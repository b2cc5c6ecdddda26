"""`/v1/responses`: answers a question or a conversation in the newer of OpenAI's protocols."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.params import JSONBody

from colmlm.api.nouns.generation import Completed, Finished, GenerationRequest, Generator
from colmlm.api.openai.citations import citations
from colmlm.api.openai.conversation import refusal_of, shift_of
from colmlm.api.openai.errors import DECODING
from colmlm.api.openai.models import require_model
from colmlm.api.openai.response_objects import (
    AnsweredResponse,
    OutputPart,
    OutputRefusal,
    OutputText,
    begun,
    ended,
    message,
    output_part,
)
from colmlm.api.openai.response_request import ResponseRequest
from colmlm.api.openai.streams import named_events
from colmlm.api.ports import FromPorts, await_seen
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
    response = begun(data, model, int(time.time()))
    if data.stream:
        return named_events(_events(generator, decoding, response, base_url))
    (done,) = generator.complete([decoding])
    return Response(_answered(response, decoding, done, base_url))


def _answered(
    response: AnsweredResponse, decoding: GenerationRequest, done: Completed, base_url: str
) -> AnsweredResponse:
    assert done.trace is not None, "something was to be decoded"
    shift = shift_of(done.trace.output)
    cited = citations(done.trace, base_url, shift=shift)
    part = output_part(done.trace.output[-shift:], refusal_of(decoding, done.trace), cited)
    return ended(response, part, done.finished, done.trace, cited)


def _events(
    generator: Generator, decoding: GenerationRequest, response: AnsweredResponse, base_url: str
) -> Iterator[Told]:
    """Yields the events of a response while it is decoded; its one part begins with the first piece of text."""
    events = ResponseEvents(response)
    said, shift, took = "", None, Finished(reason="length", prompt_tokens=0, completion_tokens=0)
    for item in generator.stream(decoding):
        yield from events.begin()
        if isinstance(item, str):
            if shift is None:
                shift = shift_of(item)
                item = item[-shift:]
            said += item
            yield from events.text(item)
        elif isinstance(item, Finished):
            took = item
        elif isinstance(item, OutputTrace):
            cited = citations(item, base_url, shift=shift or 0)
            part = output_part(said, refusal_of(decoding, item), cited)
            yield from events.end(part, ended(response, part, took, item, cited))


# The events of a streamed response, numbered in their order.

Told = dict[str, Any]


class ResponseEvents:
    """Tells a response by events: that it begins, its text, its citations, and the whole.

    All are of one part of one message, whose ids do not change.
    """

    def __init__(self, response: AnsweredResponse) -> None:
        self._response = response
        self._num_told = 0
        self._is_open = False  # whether the part was begun

    def begin(self) -> Iterator[Told]:
        """Yields the beginning, once."""
        if not self._num_told:
            yield self._told("response.created", response=self._response)
            yield self._told("response.in_progress", response=self._response)
            item = message(self._response, "in_progress")
            yield self._told("response.output_item.added", output_index=0, item=item)

    def text(self, piece: str) -> Iterator[Told]:
        """Yields a piece of the text."""
        yield from self._open(OutputText(text=""))
        if piece:
            yield self._of_part("response.output_text.delta", delta=piece, logprobs=[])

    def end(self, part: OutputPart, response: AnsweredResponse) -> Iterator[Told]:
        """Yields the citations, the finished part, message and response."""
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
        yield self._told("response.output_item.done", output_index=0, item=response.output[0])
        yield self._told(f"response.{response.status}", response=response)

    def _open(self, part: OutputPart) -> Iterator[Told]:
        if not self._is_open:
            self._is_open = True
            yield self._of_part("response.content_part.added", part=part)

    def _of_part(self, kind: str, **fields: Any) -> Told:
        item_id = message(self._response, "in_progress").id
        return self._told(kind, item_id=item_id, output_index=0, content_index=0, **fields)

    def _told(self, kind: str, **fields: Any) -> Told:
        number, self._num_told = self._num_told, self._num_told + 1
        return {
            "type": kind,
            "sequence_number": number,
            **{name: msgspec.to_builtins(value) for name, value in fields.items()},
        }
