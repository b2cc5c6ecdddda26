"""What a decoder is asked for, and what it says while it works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from colmlm.kb.evidence.records import OutputTrace
from colmlm.kb.facts.records import Source
from colmlm.kb.keys.records import CheckpointInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """How to decode. `mode` is "auto" (the model decides when to look up), "forced" (at once) or "off".

    `prompt` is text or token ids; temperature 0 is greedy; `threshold` None is the keyset's own; `min_seq` makes
    lookups wait for that change; `fact_bias` is added to the logit of a lookup in "auto" (None: the checkpoint's own).
    """

    prompt: str | tuple[int, ...]
    mode: str = "auto"
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.2
    stop: tuple[str, ...] = ()
    seed: int = 0
    threshold: float | None = None
    min_seq: int | None = None
    fact_bias: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spliced:
    """A fact's value stands in the output: ``output[output_start:output_end] == value``, where the pieces so far end.

    `document` is None where the fact has none, or where it is not known before the output is stored.
    """

    output_start: int
    output_end: int
    fact_id: int
    version: int
    value: str
    score: float
    document: Source | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A lookup that spliced nothing. `outcome` is "no_match" or "abstained", `score` the best of any live fact."""

    output_start: int
    outcome: str
    score: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Why an output ended: "end" (the model's doing), "length", "stop" or "context" (full); and what it took.

    `completion_tokens` are those that the model chose. Spliced ones are free.
    """

    reason: str
    prompt_tokens: int
    completion_tokens: int


Item = str | Spliced | Missed | Finished | OutputTrace


class Decoder(Protocol):
    """Decodes a prompt, and stores the output."""

    def generate(self, request: GenerationRequest) -> OutputTrace: ...

    def stream(self, request: GenerationRequest) -> Iterator[Item]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token as bytes with its log-probability (None: nothing stands before it), and the likeliest in its place.

    One that `is_special` has a name and is no part of the text.
    """

    token: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...]
    is_special: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A stored output with what completions tell beside it. `trace` is None where nothing was to be decoded.

    Where asked for, log-probabilities of the prompt's tokens and of the model's, with the one that ended the output.
    """

    prompt: str
    trace: OutputTrace | None
    finished: Finished
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    output_logprobs: tuple[TokenLogprob, ...] = ()


class Generator(Decoder, Protocol):
    """Decodes, stores what was said and on what evidence, and gives the stored trace. Called from several threads."""

    @property
    def model(self) -> CheckpointInfo: ...

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """Pieces of text as they are decoded, which joined are the output, and its lookups; then the stored trace.

        A `Spliced` comes right after the piece that ends with its value, `Finished` before the trace, which is last.
        """
        ...

    def complete(self, requests: Sequence[GenerationRequest], top: int | None = None) -> list[Completed]:
        """Outputs of requests that differ in their prompts only; `max_tokens` 0 decodes and stores nothing.

        With `top`, log-probabilities under the model alone, each with so many of the likeliest tokens; the mode is
        "off" then. Raises `PromptRefused` where one cannot be read.
        """
        ...
