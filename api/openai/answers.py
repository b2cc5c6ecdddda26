"""The responses to completions and chats: OpenAI's objects, with `citations` and `generation_id` as extensions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from colmlm.kb.evidence.generation import FinishedOutput, TokenLogprob
from colmlm.kb.evidence.records import OutputTrace, TracedSplice
from colmlm.kb.facts.records import SamplePlace, Source

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
    """Record what the assistant says. Where nothing stored answers, `content` is null and `refusal` says so."""

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


def response_heading(kind: str, model: str) -> dict[str, Any]:
    """Give the fields that every response and every chunk of one begins with."""
    return {"id": f"{kind}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}


def finish_reason(finished: FinishedOutput) -> str:
    return _REASONS[finished.reason]


def usage(finished: list[FinishedOutput]) -> Usage:
    """Add up the token counts of several outputs."""
    prompt = sum(one.prompt_tokens for one in finished)
    completion = sum(one.completion_tokens for one in finished)
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


# Spliced facts as citations: with all that is known of each, and as the annotations that clients of OpenAI's
# keep.


class CitedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document a fact was read from; ``text[start:end]`` is the fact's span in its text, in code points.

    It is the source of the fact without its revision.
    """

    document_id: int
    corpus: str
    external_id: str
    title: str | None
    uri: str | None
    licence: str | None
    start: int
    end: int


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """A spliced fact: ``text[start:end]`` of the choice `index` is its value, in code points. `url` is the trace.
    A `review` of "proposed" says that nobody has accepted the fact yet. A fact of a release has no document but a
    `sample`.

    Its offsets count in the choice, which may begin with the prompt, and those of a splice in the output.
    """

    index: int
    start: int
    end: int
    value: str
    fact_id: int
    version: int
    score: float | None
    document: CitedDocument | None
    url: str
    review: str | None = None
    sample: SamplePlace | None = None


class UrlCitation(msgspec.Struct, frozen=True, kw_only=True):
    """Record where a value stands in a message, and what it was read from. Offsets count code points, up to
    `end_index`.

    `url` is the document's address, or the trace where it has none.
    """

    start_index: int
    end_index: int
    url: str
    title: str


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """A citation in the form that chats have for it."""

    url_citation: UrlCitation
    type: str = "url_citation"


def citations(trace: OutputTrace, base_url: str, *, index: int = 0, shift: int = 0) -> list[Citation]:
    """Give the citations of an output's spliced facts. The output begins `shift` characters into the choice."""
    return [
        _citation(splice, trace, base_url, index, shift)
        for splice in trace.splices
        if splice.outcome == "hit"
    ]


def _citation(splice: TracedSplice, trace: OutputTrace, base_url: str, index: int, shift: int) -> Citation:
    assert splice.fact_id is not None and splice.version is not None, "a hit names its fact"
    return Citation(
        index=index,
        start=splice.output_start + shift,
        end=splice.output_end + shift,
        value=splice.value,
        fact_id=splice.fact_id,
        version=splice.version,
        score=splice.score,
        document=None if splice.source is None else _document(splice.source),
        url=f"{base_url.rstrip('/')}/v1/generations/{trace.generation_id}",
        review=splice.review,
        sample=splice.sample,
    )


def _document(source: Source) -> CitedDocument:
    return CitedDocument(
        document_id=source.document_id,
        corpus=source.corpus,
        external_id=source.external_id,
        title=source.title,
        uri=source.uri,
        licence=source.licence,
        start=source.start,
        end=source.end,
    )


def url_citation(cited: Citation) -> UrlCitation:
    """Give a citation with the fields that OpenAI has for one."""
    document = cited.document
    return UrlCitation(
        start_index=cited.start,
        end_index=cited.end,
        url=(document.uri if document else None) or cited.url,
        title=(document.title or document.external_id) if document else cited.value,
    )


def annotations_of(cited: Sequence[Citation]) -> list[Annotation]:
    return [Annotation(url_citation=url_citation(one)) for one in cited]


# Log-probabilities in the forms of completions and of chats.


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities in OpenAI's form. A token that is part of a character reads ``bytes:\\xe2``.

    `text_offset` counts code points.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class LikelyToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that could have stood in a place, and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a chat's answer, its bytes, and the likeliest in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[LikelyToken]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probabilities of a chat's answer. Its first token holds the space before it, which is no part of it."""

    content: list[ChatToken]
    refusal: None = None


def chat_logprobs(tokens: Sequence[TokenLogprob], asked: int) -> ChatLogprobs:
    """Convert log-probabilities to the form of chats, which has no place for the token that ends a text."""
    return ChatLogprobs(content=[_chat_token(one, asked) for one in tokens if not one.is_special])


def _chat_token(one: TokenLogprob, asked: int) -> ChatToken:
    assert one.logprob is not None, "only a prompt's first token has none"
    return ChatToken(
        token=_text(one.token),
        logprob=one.logprob,
        bytes=list(one.token),
        top_logprobs=[
            LikelyToken(token=_text(token), logprob=logprob, bytes=list(token))
            for token, logprob in one.top[:asked]
        ],
    )


def logprobs(tokens: Sequence[TokenLogprob], asked: int) -> CompletionLogprobs:
    """Convert log-probabilities to OpenAI's form.

    The chosen token is always listed in `top_logprobs`, even where it is not among the likeliest, so that a reader can
    tell whether it was the likeliest.
    """
    offsets, seen = [], b""
    for one in tokens:
        offsets.append(len(seen.decode(errors="ignore")))
        seen += b"" if one.is_special else one.token
    return CompletionLogprobs(
        tokens=[_text(one.token) for one in tokens],
        token_logprobs=[one.logprob for one in tokens],
        top_logprobs=[_top_logprobs(one, asked) for one in tokens],
        text_offset=offsets,
    )


def _top_logprobs(one: TokenLogprob, asked: int) -> dict[str, float] | None:
    if one.logprob is None:
        return None
    return {_text(token): logprob for token, logprob in one.top[:asked]} | {_text(one.token): one.logprob}


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
