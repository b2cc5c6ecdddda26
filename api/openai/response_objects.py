"""The objects of `/v1/responses`: a response with one message, whose citations are annotations of its text."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from colmlm.api.nouns.generation import Finished
from colmlm.api.openai.answers import finish_reason
from colmlm.api.openai.citations import Citation, url_citation
from colmlm.api.openai.response_request import ResponseRequest
from colmlm.kb.evidence.records import OutputTrace


class TextCitation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value stands in the text, in code points, and the document, or else the trace, that it was read from."""

    start_index: int
    end_index: int
    url: str
    title: str
    type: str = "url_citation"


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    """What the model says, with its citations."""

    text: str
    annotations: list[TextCitation] = []
    logprobs: list[None] = []


class OutputRefusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """Says that nothing in the knowledge base answers."""

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
    """Why a response is incomplete."""

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


def begun(data: ResponseRequest, model: str, created_at: int) -> AnsweredResponse:
    """Gives a response to this request with nothing in it yet."""
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
    """Gives the one message of a response."""
    return OutputMessage(id=response.id.replace("resp_", "msg_"), status=status, content=list(content))


def ended(
    response: AnsweredResponse, part: OutputPart, took: Finished, trace: OutputTrace, cited: list[Citation]
) -> AnsweredResponse:
    """Gives the response with its output, after this was stored."""
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
