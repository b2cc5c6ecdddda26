"""The bodies of completion and chat requests: OpenAI's fields, and this server's own.

A field of OpenAI's that this decoder does not implement is accepted at its default and otherwise refused by name,
never ignored.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from colmlm.api.nouns.generation import GenerationRequest
from colmlm.api.openai.errors import Unsupported
from colmlm.api.wire.requests import AcceptedOnly, MinSeq, OnMiss, RankingName, Request, Threshold

MAX_PROMPTS = 32
MAX_TOKENS = 512
MAX_TOP = 20
COMPLETION_TOKENS, CHAT_TOKENS = 16, 256

Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Tokens = Annotated[list[Token], Meta(min_length=1)]  # the generator limits their number
Prompts = Annotated[list[str | Token | Tokens], Meta(min_length=1)]
Stop = Annotated[str, Meta(min_length=1, max_length=100)]

# Fields of the protocol that this decoder does not implement. The schema allows only the value that changes nothing;
# any other value is parsed all the same, so that it can be refused by name.
One = Annotated[int, Meta(extra_json_schema={"enum": [1]})]
Zero = Annotated[float, Meta(extra_json_schema={"enum": [0]})]
NoBias = Annotated[dict[str, float], Meta(extra_json_schema={"maxProperties": 0})]
NoText = Annotated[str, Meta(extra_json_schema={"maxLength": 0})]
NoLogprobs = Annotated[bool, Meta(extra_json_schema={"enum": [False]})]
NoTop = Annotated[int, Meta(extra_json_schema={"enum": [0]})]
NoTools = Annotated[list[Any], Meta(extra_json_schema={"maxItems": 0})]
NoTool = Annotated[Any, Meta(extra_json_schema={"enum": ["none", None]})]
OnlyText = Annotated[dict[str, Any], Meta(extra_json_schema={"enum": [{"type": "text"}]})]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream. `include_usage` adds a last chunk with `usage` and without choices."""

    include_usage: bool = False


class _Asked(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that both kinds of requests have. `mode` to `min_tokens` are this server's own."""

    model: Annotated[str, Meta(min_length=1, max_length=300)]
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: One | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: NoBias | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    mode: Literal["auto", "forced", "off"] | None = None
    threshold: Threshold | None = None
    min_seq: MinSeq | None = None
    fact_bias: Annotated[float, Meta(ge=-100, le=100)] | None = None
    on_miss: OnMiss | None = None
    ranking: RankingName | None = None
    accepted_only: AcceptedOnly = False
    repetition_penalty: Annotated[float, Meta(ge=0.5, le=5)] = 1.0
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0

    def refuse_unsupported(self) -> None:
        """Raises `Unsupported` where a field asks for something that this decoder does not implement."""
        if self.n not in (None, 1):
            raise Unsupported(
                "n", f"{self.n} choices are not supported; ask once for each, with a seed of its own"
            )
        for field in ("presence_penalty", "frequency_penalty"):
            if getattr(self, field):
                raise Unsupported(field, "it is not supported; use repetition_penalty, of this server's own")
        if self.logit_bias:
            raise Unsupported(
                "logit_bias", "it is not supported; use fact_bias for how readily lookups are made"
            )

    def decoding(
        self, prompt: str | tuple[int, ...], max_tokens: int, stops: tuple[str, ...]
    ) -> GenerationRequest:
        """Gives the generation request of a prompt. Raises `Unsupported`."""
        if self.min_tokens > max_tokens:
            raise Unsupported("min_tokens", f"{self.min_tokens} is more than the most tokens, {max_tokens}")
        return GenerationRequest(
            prompt=prompt,
            mode=self.mode or "auto",
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            repetition_penalty=self.repetition_penalty,
            stop=stops,
            seed=secrets.randbits(32) if self.seed is None else self.seed % 2**32,
            threshold=self.threshold,
            min_seq=self.min_seq,
            fact_bias=self.fact_bias,
            on_miss=self.on_miss,
            ranking=self.ranking,
            accepted_only=self.accepted_only,
        )

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Asked, frozen=True, kw_only=True):
    """Prompts to complete: one text or several, or the token ids of one or several.

    `max_tokens` 0 with `echo` only scores them. Where a lookup finds nothing a completion continues, unless `on_miss`
    is "abstain".
    """

    prompt: str | Prompts
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    echo: bool | None = None
    best_of: One | None = None
    suffix: NoText | None = None

    def decodings(self) -> list[GenerationRequest]:
        """Gives a generation request for each prompt. Raises `Unsupported`."""
        self._refuse()
        max_tokens = COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        requests = [
            replace(self.decoding(prompt, max_tokens, self.stops), on_miss=self.on_miss or "continue")
            for prompt in self._prompts()
        ]
        return [replace(one, mode="off") for one in requests] if self.logprobs is not None else requests

    def _refuse(self) -> None:
        self.refuse_unsupported()
        if self.best_of not in (None, 1):
            raise Unsupported("best_of", "it is not supported; leave it out")
        if self.suffix:
            raise Unsupported("suffix", "text is not inserted, only continued; leave it out")
        if self.logprobs is not None and self.mode not in (None, "off"):
            raise Unsupported(
                "logprobs", "they are the model's alone, without lookups; leave mode out, or set it off"
            )
        if self.logprobs is not None and self.stream:
            raise Unsupported("logprobs", "a stream has none; leave stream out")
        if self.logprobs is not None and self.on_miss == "abstain":
            raise Unsupported(
                "logprobs", "nothing is looked up for them, so nothing can miss; leave on_miss out"
            )
        if self.echo and self.stream and not all(isinstance(prompt, str) for prompt in self._prompts()):
            raise Unsupported("echo", "a stream gives back no token ids; leave it out, or send text")
        if self.max_tokens == 0 and self.stream:
            raise Unsupported("max_tokens", "a stream of nothing; leave stream out")
        if self.max_tokens == 0 and not self.echo:
            raise Unsupported("max_tokens", "0 gives nothing unless echo is set")

    def _prompts(self) -> list[str | tuple[int, ...]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(one) for one in self.prompt}
        if kinds == {int}:
            return [tuple(token for token in self.prompt if isinstance(token, int))]
        if int in kinds:
            raise Unsupported("prompt", "token ids of several prompts are lists of their own")
        if len(self.prompt) > MAX_PROMPTS:
            raise Unsupported("prompt", f"{len(self.prompt)} prompts at once; at most {MAX_PROMPTS}")
        return [
            one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int)
        ]


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a conversation, as text or as parts that are text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(max_length=64)]
    name: str | None = None

    @property
    def text(self) -> str:
        said = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return said.strip()


class ChatRequest(_Asked, frozen=True, kw_only=True):
    """A conversation whose last message is the user's; `api.openai.chat` writes it as the text that the model reads."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=100)]
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: NoLogprobs | None = None
    top_logprobs: NoTop | None = None
    tools: NoTools | None = None
    tool_choice: NoTool = None
    response_format: OnlyText | None = None

    def refuse(self) -> None:
        """Raises `Unsupported` where a field asks for something that chats here do not implement."""
        self.refuse_unsupported()
        if self.logprobs or self.top_logprobs:
            raise Unsupported("logprobs", "a chat has none; ask /v1/completions")
        if self.tools or self.tool_choice not in (None, "none"):
            raise Unsupported("tools", "the model calls none; its lookups are its own")
        if self.response_format not in (None, {"type": "text"}):
            raise Unsupported("response_format", "only text is written")
        if self.messages[-1].role != "user":
            raise Unsupported("messages", "the last one must be the user's")

    @property
    def tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or CHAT_TOKENS
