"""The responses to completions and chats: OpenAI's objects, with `citations` and `generation_id` as extensions."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec

from colmlm.api.nouns.generation import Finished
from colmlm.api.openai.citations import Annotation, Citation
from colmlm.api.openai.logprobs import ChatLogprobs, CompletionLogprobs

_REASONS = {"end": "stop", "stop": "stop", "miss": "stop", "length": "length", "context": "length"}


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a response. `completion_tokens` are those that the model chose; spliced tokens are not counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    generation_id: int | None = None
    citations: list[Citation] = []


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A completion or a chunk of one. `citations` are those of all choices."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    citations: list[Citation] = []
    object: str = "text_completion"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What the assistant says. Where nothing stored answers, `content` is null and `refusal` says so."""

    role: str
    content: str | None
    refusal: str | None = None
    annotations: list[Annotation] = []


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatMessage
    finish_reason: str
    generation_id: int
    citations: list[Citation]
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    citations: list[Citation]
    object: str = "chat.completion"


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    annotations: list[Annotation] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    generation_id: int | None = None
    citations: list[Citation] = []
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    citations: list[Citation] = []
    object: str = "chat.completion.chunk"


def heading(kind: str, model: str) -> dict[str, Any]:
    """Gives the fields that every response and every chunk of one begins with."""
    return {"id": f"{kind}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}


def finish_reason(finished: Finished) -> str:
    return _REASONS[finished.reason]


def usage(finished: list[Finished]) -> Usage:
    """Adds up the token counts of several outputs."""
    prompt = sum(one.prompt_tokens for one in finished)
    completion = sum(one.completion_tokens for one in finished)
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
