"""Examples of OpenAI's objects for the OpenAPI document, about the same small base as `api.schema.examples`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from colmlm.api.openai import answers
from colmlm.api.openai.answers import Citation, CitedDocument, annotated
from colmlm.api.openai.chat import (
    ChatRequest,
    CompletionUpdate,
    FeedbackMetadata,
    JudgedChoice,
    JudgedCompletion,
)
from colmlm.api.openai.completions import CompletionRequest
from colmlm.api.openai.errors import OpenAIProblem, describe_error
from colmlm.api.openai.fields import DONE, Message
from colmlm.api.openai.models import Embedding, EmbeddingRequest, Embeddings, EmbeddingUsage, Model, Models
from colmlm.api.openai.responses import (
    AnsweredResponse,
    OutputMessage,
    OutputText,
    ResponseRequest,
    ResponseUsage,
    text_citation,
)

_CREATED, _MODEL = 1_769_860_800, "co-lmlm-135m"


def _cited(start: int) -> Citation:
    """Give a citation of the value Lima, `start` characters into the choice."""
    document = CitedDocument(
        document_id=3,
        corpus="atlas",
        external_id="peru",
        title="Peru",
        uri="https://example.org/peru",
        licence="CC-BY-4.0",
        start=23,
        end=27,
    )
    return Citation(
        index=0,
        start=start,
        end=start + len("Lima"),
        value="Lima",
        fact_id=12,
        version=1,
        score=0.93,
        document=document,
        url="https://kb.example.org/v1/generations/7",
    )


_USAGE = answers.Usage(prompt_tokens=14, completion_tokens=1, total_tokens=15)
_COMPLETED = answers.Completion(
    id="cmpl-0f3a",
    created=_CREATED,
    model=_MODEL,
    choices=[
        answers.CompletionChoice(
            index=0, text=" Lima.", finish_reason="stop", generation_id=7, citations=[_cited(1)]
        )
    ],
    usage=_USAGE,
    citations=[_cited(1)],
)
_TOLD = answers.ChatChoice(
    index=0,
    message=answers.ChatMessage(role="assistant", content="Lima.", annotations=annotated([_cited(0)])),
    finish_reason="stop",
    generation_id=7,
    citations=[_cited(0)],
)
_CHUNK = answers.ChatChunk(
    id="chatcmpl-0f3a",
    created=_CREATED,
    model=_MODEL,
    choices=[answers.ChatChunkChoice(index=0, delta=answers.Delta(content="Lima."))],
)
_RESPONDED = AnsweredResponse(
    id="resp_0f3a",
    created_at=_CREATED,
    model=_MODEL,
    status="completed",
    instructions=None,
    max_output_tokens=None,
    temperature=0.0,
    top_p=1.0,
    metadata={},
    output=[
        OutputMessage(
            id="msg_0f3a",
            status="completed",
            content=[OutputText(text="Lima.", annotations=[text_citation(_cited(0))])],
        )
    ],
    usage=ResponseUsage(input_tokens=14, output_tokens=1, total_tokens=15),
    generation_id=7,
    citations=[_cited(0)],
)
_SERVED = Model(id=_MODEL, checkpoint_id="c0ffee")

OPENAI_EXAMPLES: tuple[Any, ...] = (
    CompletionRequest(model=_MODEL, prompt="The capital of Peru is", max_tokens=16, temperature=0.0),
    _COMPLETED,
    CompletionUpdate(metadata=FeedbackMetadata(feedback="down", value="Lima")),
    JudgedCompletion(
        id="7",
        created=_CREATED,
        model="c0ffee",
        choices=[
            JudgedChoice(message=answers.ChatMessage(role="assistant", content="Cusco."), generation_id=7)
        ],
        metadata=FeedbackMetadata(feedback="down", value="Lima"),
    ),
    ChatRequest(model=_MODEL, messages=[Message(role="user", content="What is the capital of Peru?")]),
    answers.ChatCompletion(
        id="chatcmpl-0f3a",
        created=_CREATED,
        model=_MODEL,
        choices=[_TOLD],
        usage=_USAGE,
        citations=_TOLD.citations,
    ),
    ResponseRequest(model=_MODEL, input="What is the capital of Peru?"),
    _RESPONDED,
    EmbeddingRequest(model=_MODEL, input="What is the capital of Peru?"),
    Embeddings(
        data=[Embedding(index=0, embedding=[0.6, 0.8])],
        model=_MODEL,
        keyset_id=2,
        checkpoint_id="c0ffee",
        usage=EmbeddingUsage(prompt_tokens=7, total_tokens=7),
    ),
    _SERVED,
    Models(data=[_SERVED]),
)


def _streamed(chunk: msgspec.Struct) -> str:
    return f"data: {msgspec.json.encode(chunk).decode()}\r\n\r\ndata: {DONE}\r\n\r\n"


def _completed(response: AnsweredResponse) -> str:
    data = {"type": "response.completed", "sequence_number": 9, "response": response}
    return f"event: response.completed\r\ndata: {msgspec.json.encode(data).decode()}\r\n\r\n"


OPENAI_EVENTS: Mapping[str, str] = {
    "complete": _streamed(_COMPLETED),
    "chat": _streamed(_CHUNK),
    "respond": _completed(_RESPONDED),
}


def refused(status: int, said: str) -> OpenAIProblem:
    """Give an error of this status in OpenAI's form."""
    return describe_error(f"{said}.", status, code="model_not_found" if status == 404 else "refused")
