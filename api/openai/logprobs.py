"""Log-probabilities in the forms of completions and of chats."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from colmlm.api.nouns.generation import TokenLogprob


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
    """Converts log-probabilities to the form of chats, which has no place for the token that ends a text."""
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
    """Converts log-probabilities to OpenAI's form.

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
        top_logprobs=[_top(one, asked) for one in tokens],
        text_offset=offsets,
    )


def _top(one: TokenLogprob, asked: int) -> dict[str, float] | None:
    if one.logprob is None:
        return None
    return {_text(token): logprob for token, logprob in one.top[:asked]} | {_text(one.token): one.logprob}


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
