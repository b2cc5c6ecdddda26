"""Computes log-probabilities of prompts and their outputs, token by token, as completions report them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colmlm.api.nouns.generation import TokenLogprob
from colmlm.kb.errors import PromptRefused

if TYPE_CHECKING:
    from colmlm.model.decoding.decoder import DecodedOutput
    from colmlm.model.lm.checkpoint import Checkpoint


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
    """Scores each prompt with its output (None: no output), under the model without lookups.

    The token that the decoder puts at the start of every text is reported only where the prompt itself begins with it.
    A prompt's first token has no log-probability, as the protocol says. Raises `PromptRefused` beyond the model's
    context.
    """
    from colmlm.model.decoding.scoring import score

    tokenizer = checkpoint.tokenizer
    started = [tokenizer.prompt(prompt) for prompt in prompts]
    sequences = [
        [*ids, *_kept(checkpoint, generation)] for ids, generation in zip(started, generations, strict=True)
    ]
    try:
        scored = score(checkpoint, sequences, top=top)
    except ValueError as error:
        raise PromptRefused(str(error)) from error
    found = []
    for prompt, ids, scores in zip(prompts, started, scored, strict=True):
        is_start_given = not isinstance(prompt, str) and prompt[:1] == (tokenizer.begin,)
        first, after = (ids[:1], 0) if is_start_given else (ids[1:2], 1)
        unscored = [_reported(checkpoint, token, None, ()) for token in first]
        reported = [_reported(checkpoint, one.token, one.logprob, one.top) for one in scores]
        ends = len(ids) - 1
        found.append(Logprobs((*unscored, *reported[after:ends]), tuple(reported[ends:])))
    return found


def _kept(checkpoint: Checkpoint, generation: DecodedOutput | None) -> tuple[int, ...]:
    """Gives the tokens of an output, with the one that ended it and without those that a stop string cut off."""
    if generation is None or generation.finish != "stop":
        return generation.tokens if generation else ()
    kept = 0
    while len(checkpoint.tokenizer.decode(generation.tokens[:kept])) < len(generation.output):
        kept += 1
    return generation.tokens[:kept]


def _reported(
    checkpoint: Checkpoint, token: int, logprob: float | None, top: tuple[tuple[int, float], ...]
) -> TokenLogprob:
    tokenizer = checkpoint.tokenizer
    return TokenLogprob(
        token=tokenizer.bytes_of(token),
        logprob=logprob,
        top=tuple((tokenizer.bytes_of(other), likely) for other, likely in top),
        is_special=token in tokenizer.special,
    )
