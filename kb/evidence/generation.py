"""The requests that a decoder takes, and the items that it gives while it decodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from colmlm.kb.evidence.records import OutputTrace
from colmlm.kb.facts.records import Source
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.lookup.options import limit_corpora
from colmlm.kb.texts.asked import ANSWER


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A prompt and how to decode it. `mode` is "auto" (the model decides when to look up), "forced" (at once) or "off".

    `prompt` is text or token ids. Temperature 0 is greedy. A `threshold` of None is the ranking's own. `min_seq` makes
    lookups wait for that change. The model ends no text before `min_tokens`. `fact_bias` is added to the logit of
    `<FACT>` in "auto" (None: the checkpoint's own).

    `on_miss` says what follows a lookup without a hit. "abstain" ends the output after its last splice, and leaves it
    empty if it has none. "continue" goes on in the model's own words. None: a question abstains, a text continues.

    `ranking` is how lookups find facts: "key", "words" or "reader". None is the generator's default: the reader for a
    prompt that ends in a question, the nearest key for any other text. If the reader is the default, a fact must reach
    its threshold and `threshold`. With `accepted_only` lookups find no proposed fact, with `corpora` only facts of
    these corpora.
    """

    prompt: str | tuple[int, ...]
    mode: str = "auto"
    max_tokens: int = 64
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.2
    stop: tuple[str, ...] = ()
    seed: int = 0
    threshold: float | None = None
    min_seq: int | None = None
    fact_bias: float | None = None
    on_miss: str | None = None
    ranking: str | None = None
    accepted_only: bool = False
    corpora: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "corpora", limit_corpora(self.corpora))

    @property
    def abstains(self) -> bool:
        """Tell whether the output ends after its last fact when a lookup finds nothing.

        If `on_miss` is None, it does so for questions, in every mode but "off".
        """
        if self.on_miss is None:
            return self.mode != "off" and self.is_question
        return self.on_miss == "abstain"

    @property
    def is_question(self) -> bool:
        """Tell whether the prompt ends in "Answer:", as questions in training did and chats do."""
        return isinstance(self.prompt, str) and self.prompt.rstrip().endswith(ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplicedValue:
    """A value spliced into an output at ``output[output_start:output_end]``, the end of the pieces given so far.

    `document` is None if the fact has none, or if it is unknown before the output is stored.
    """

    output_start: int
    output_end: int
    fact_id: int
    version: int
    value: str
    score: float
    document: Source | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedLookup:
    """A lookup that spliced nothing. `outcome` is "no_match" or "abstained", `score` the best of any live fact."""

    output_start: int
    outcome: str
    score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedOutput:
    """The reason why an output ended: "end" (the model ended it), "length", "stop", "context" (full) or "miss"; with
    token counts.

    It is "miss" where a lookup found nothing and the output abstains. `completion_tokens` counts the tokens that the
    model chose, without spliced ones.
    """

    reason: str
    prompt_tokens: int
    completion_tokens: int


Item = str | SplicedValue | MissedLookup | FinishedOutput | OutputTrace


class StoringDecoder(Protocol):
    """Decodes a prompt and stores the output."""

    def generate(self, request: GenerationRequest) -> OutputTrace: ...

    def stream(self, request: GenerationRequest) -> Iterator[Item]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token as bytes with its log-probability (None for the first token), and the likeliest tokens in its place.

    A token that `is_special` is given by its name and is no part of the text.
    """

    token: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...]
    is_special: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRequest:
    """The result of one completion request; `trace` is None if nothing was decoded (`max_tokens` 0).

    If asked for, it has the log-probabilities of the prompt's tokens and of those that the model chose.
    """

    prompt: str
    trace: OutputTrace | None
    finished: FinishedOutput
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    output_logprobs: tuple[TokenLogprob, ...] = ()


class Generator(StoringDecoder, Protocol):
    """A decoder that stores each output with its splices and gives the stored trace. Several threads may call it."""

    @property
    def model(self) -> CheckpointInfo: ...

    def check_prompts(self, requests: Sequence[GenerationRequest]) -> None:
        """Raise the error that decoding one of these prompts would raise: `PromptRefused`, `ContextLengthExceeded`."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of these texts together, without those that mark facts and questions."""
        ...

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """Yield the output in pieces of text as they are decoded, its splices and missed lookups, then the trace.

        A `SplicedValue` follows the piece that ends with its value; `FinishedOutput` comes right before the trace.
        """
        ...

    def complete(
        self, requests: Sequence[GenerationRequest], top: int | None = None
    ) -> list[CompletedRequest]:
        """Complete requests that differ in their prompts only; with `max_tokens` 0 it decodes and stores nothing.

        With `top` it gives log-probabilities under the model without lookups, each with the `top` likeliest tokens;
        the mode must be "off" then. Raises `PromptRefused` where a prompt cannot be read.
        """
        ...
