"""Decodes for the API and the commands, and stores every output with its attributions, here or on a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from colmlm.cli.composition.encoders import describe
from colmlm.kb.errors import refusals
from colmlm.kb.evidence.generation import (
    CompletedRequest,
    FinishedOutput,
    GenerationRequest,
    Item,
    MissedLookup,
    SplicedValue,
    TokenLogprob,
)
from colmlm.kb.evidence.records import NewOutput, OutputTrace, Splice
from colmlm.kb.facts.records import Source
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.lookup.options import KEY, READER, filter_of
from colmlm.kb.texts.asked import question_in

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase
    from colmlm.model.decoding.config import DecodeConfig, LookupPort
    from colmlm.model.decoding.decoder import DecodedOutput, Decoder
    from colmlm.model.decoding.rows import SpliceRecord
    from colmlm.model.decoding.together import DecoderTogether
    from colmlm.model.lm.checkpoint import Checkpoint


ROWS_TOGETHER = 8  # limits the memory of the cache of a batch, which is as long as its longest row


class OutputStore(Protocol):
    """Stores the outputs of a generator, here or on a server."""

    def store(self, generation: NewOutput) -> OutputTrace: ...

    def source(self, fact_id: int) -> Source | None:
        """Give the source of a fact; None if it has none, or if it is not known before the output is stored."""
        ...

    def head_seq(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LocalOutputs:
    """Stores outputs in this process's knowledge base."""

    kb: KnowledgeBase

    def store(self, generation: NewOutput) -> OutputTrace:
        return self.kb.outputs.record_traced(generation)

    def source(self, fact_id: int) -> Source | None:
        return self.kb.facts.show(fact_id).source

    def head_seq(self) -> int:
        return self.kb.log.head_seq()


@dataclass(slots=True)
class StoringGenerator:
    """Decodes, and stores every output with its attributions; a `kb.evidence.generation.Generator`.

    `lookup` is the knowledge base or a wrapper of it. `seq` is stored as the change of an output without lookups
    (None: the last change). A prompt may have `prompt_max_tokens` (None: as many as the model reads). `ranking` finds
    facts if a request names none (None: the reader for a question, the key for other text). `check` is called at every
    step, and its exceptions end the decoding. With `together`, prompts are decoded with those of other threads.
    """

    checkpoint: Checkpoint
    outputs: OutputStore
    lookup: LookupPort
    seq: int | None = None
    prompt_max_tokens: int | None = None
    ranking: str | None = None
    check: Callable[[], None] = lambda: None
    together: DecoderTogether | None = None

    @property
    def model(self) -> CheckpointInfo:
        return describe(self.checkpoint)

    def count_tokens(self, texts: Sequence[str]) -> int:
        return sum(len(self.checkpoint.tokenizer.encode(text)) for text in texts)

    def generate(self, request: GenerationRequest) -> OutputTrace:
        self.check_prompts([request])
        (generation,) = self._decoder().generate([request.prompt], self._config(request), self.check)
        return self._store(generation, request)

    def stream(self, request: GenerationRequest) -> Iterator[Item]:
        """Yield the pieces of the output's text and its lookups, then why it ended, then its stored trace."""
        from colmlm.model.decoding.decoder import DecodedOutput

        self.check_prompts([request])
        said = ""
        for item in self._decoder().stream(request.prompt, self._config(request), self.check):
            if isinstance(item, str):
                said += item
                yield item
            elif isinstance(item, DecodedOutput):
                yield _finish_details(item)
                yield self._store(item, request)
            else:
                yield self._looked_up(item, said)

    def complete(
        self, requests: Sequence[GenerationRequest], top: int | None = None
    ) -> list[CompletedRequest]:
        """Complete requests as `kb.evidence.generation.Generator.complete` says."""
        self.check_prompts(requests)
        generations = self._generations(requests)
        if top is None:
            scores = [NO_LOGPROBS] * len(requests)
        else:
            scores = logprobs(self.checkpoint, [request.prompt for request in requests], generations, top)
        return [
            self._store_completion(request, generation, own)
            for request, generation, own in zip(requests, generations, scores, strict=True)
        ]

    def check_prompts(self, requests: Sequence[GenerationRequest]) -> None:
        """Raise an error if the prompt of a request has too many tokens, or token ids that no text has."""
        context = self.checkpoint.lm.inference.context
        most = context if self.prompt_max_tokens is None else min(context, self.prompt_max_tokens)
        for request in requests:
            try:
                num_tokens = len(self.checkpoint.tokenizer.prompt(request.prompt))
            except ValueError as error:
                raise refusals.prompt_refused(str(error)) from error
            if num_tokens > most:
                raise refusals.context_length_exceeded(num_tokens, most)

    def _generations(self, requests: Sequence[GenerationRequest]) -> Sequence[DecodedOutput | None]:
        if requests[0].max_tokens == 0:
            return [None] * len(requests)
        generations: list[DecodedOutput] = []
        for start in range(0, len(requests), ROWS_TOGETHER):
            for config, alike in groupby(requests[start : start + ROWS_TOGETHER], self._config):
                prompts = [request.prompt for request in alike]
                # The rows of a batch are drawn from its seed and those after it; no two rows from the same.
                seeded = replace(config, seed=config.seed + len(generations))
                generations += self._decoder().generate(prompts, seeded, self.check)
        return generations

    def _store_completion(
        self,
        request: GenerationRequest,
        generation: DecodedOutput | None,
        scores: Logprobs,
    ) -> CompletedRequest:
        tokenizer, prompt = self.checkpoint.tokenizer, request.prompt
        given = len(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        nothing = FinishedOutput(reason="length", prompt_tokens=given, completion_tokens=0)
        return CompletedRequest(
            prompt=prompt if isinstance(prompt, str) else tokenizer.decode(prompt),
            trace=self._store(generation, request) if generation else None,
            finished=_finish_details(generation) if generation else nothing,
            prompt_logprobs=scores.prompt,
            output_logprobs=scores.output,
        )

    def _config(self, request: GenerationRequest) -> DecodeConfig:
        from colmlm.model.decoding.decoder import Decoder

        try:
            config = decode_config(request, self._ranking(request))
            (self.together.decoder if self.together else Decoder(self.checkpoint, self.lookup)).check(config)
        except ValueError as error:
            raise refusals.invalid_decoding(str(error)) from error
        if config.ranking != READER or request.ranking or self.ranking:
            return config
        # Nobody named the reader, so the scale of the threshold may be another's: it lowers nothing.
        return replace(config, threshold=None, least_score=config.threshold)

    def _ranking(self, request: GenerationRequest) -> str:
        """Choose a request's ranking: its own, the configured one, or the reader for a question, else the key."""
        if chosen := request.ranking or self.ranking:
            return chosen
        prompt = request.prompt
        text = prompt if isinstance(prompt, str) else self.checkpoint.tokenizer.decode(prompt)
        return READER if request.mode != "off" and question_in(text) is not None else KEY

    def _decoder(self) -> Decoder | DecoderTogether:
        from colmlm.model.decoding.decoder import Decoder

        return self.together or Decoder(self.checkpoint, self.lookup)

    def _looked_up(self, splice: SpliceRecord, said: str) -> SplicedValue | MissedLookup:
        if splice.outcome != "hit":
            return MissedLookup(output_start=splice.output_start, outcome=splice.outcome, score=splice.score)
        assert splice.fact_id is not None and splice.version is not None and splice.score is not None
        return SplicedValue(
            output_start=splice.output_start,
            output_end=splice.output_end,
            fact_id=splice.fact_id,
            version=splice.version,
            value=said[splice.output_start : splice.output_end],
            score=splice.score,
            document=self.outputs.source(splice.fact_id),
        )

    def _store(self, generation: DecodedOutput, request: GenerationRequest) -> OutputTrace:
        return self.outputs.store(
            NewOutput(
                prompt=generation.prompt,
                output=generation.output,
                checkpoint_id=self.checkpoint.checkpoint_id,
                mode=generation.mode,
                seq=self._seq() if generation.seq is None else generation.seq,
                splices=tuple(
                    Splice(s.output_start, s.output_end, s.outcome, s.fact_id, s.version, s.score, s.query)
                    for s in generation.splices
                ),
                ranking=generation.ranking,
                **filter_of(request),
            )
        )

    def _seq(self) -> int:
        """Give the number of the change to store with an output that made no lookups."""
        return self.outputs.head_seq() if self.seq is None else self.seq


def _finish_details(generation: DecodedOutput) -> FinishedOutput:
    return FinishedOutput(
        reason=generation.finish,
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=generation.content_tokens,
    )


def decode_config(request: GenerationRequest, ranking: str) -> DecodeConfig:
    """Give the settings of decoding a request, with this ranking."""
    from colmlm.model.decoding.config import DecodeConfig

    said = {name: getattr(request, name) for name in request.__slots__ if name != "prompt"}
    on_miss = request.on_miss or ("abstain" if request.abstains else "continue")
    return DecodeConfig(**{**said, "on_miss": on_miss, "ranking": ranking})


# Computes log-probabilities of prompts and their outputs, token by token, as completions report them.


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The log-probabilities of the prompt's tokens, and of the output's."""

    prompt: tuple[TokenLogprob, ...]
    output: tuple[TokenLogprob, ...]


NO_LOGPROBS = Logprobs((), ())


def logprobs(
    checkpoint: Checkpoint,
    prompts: Sequence[str | tuple[int, ...]],
    generations: Sequence[DecodedOutput | None],
    top: int,
) -> list[Logprobs]:
    """Score each prompt with its output (None: no output), under the model without lookups.

    The token that the decoder puts at the start of every text is reported only where the prompt itself begins with it.
    A prompt's first token has no log-probability, as the protocol says. Raises `PromptRefused` beyond the model's
    context.
    """
    from colmlm.model.decoding.scoring import score_tokens

    tokenizer = checkpoint.tokenizer
    started = [tokenizer.prompt(prompt) for prompt in prompts]
    sequences = [
        [*ids, *_tokens(checkpoint, generation)] for ids, generation in zip(started, generations, strict=True)
    ]
    try:
        scored = score_tokens(checkpoint, sequences, top=top)
    except ValueError as error:
        raise refusals.prompt_refused(str(error)) from error
    found = []
    for prompt, ids, scores in zip(prompts, started, scored, strict=True):
        is_start_given = not isinstance(prompt, str) and prompt[:1] == (tokenizer.begin,)
        first, after = (ids[:1], 0) if is_start_given else (ids[1:2], 1)
        unscored = [_token_logprob(checkpoint, token, None, ()) for token in first]
        reported = [_token_logprob(checkpoint, one.token, one.logprob, one.top) for one in scores]
        ends = len(ids) - 1
        found.append(Logprobs((*unscored, *reported[after:ends]), tuple(reported[ends:])))
    return found


def _tokens(checkpoint: Checkpoint, generation: DecodedOutput | None) -> tuple[int, ...]:
    """Give the tokens of an output, with the one that ended it, but without those that a stop string cut off."""
    if generation is None or generation.finish != "stop":
        return generation.tokens if generation else ()
    kept = 0
    while len(checkpoint.tokenizer.decode(generation.tokens[:kept])) < len(generation.output):
        kept += 1
    return generation.tokens[:kept]


def _token_logprob(
    checkpoint: Checkpoint, token: int, logprob: float | None, top: tuple[tuple[int, float], ...]
) -> TokenLogprob:
    tokenizer = checkpoint.tokenizer
    return TokenLogprob(
        token=tokenizer.bytes_of(token),
        logprob=logprob,
        top=tuple((tokenizer.bytes_of(other), likely) for other, likely in top),
        is_special=token in tokenizer.special,
    )
