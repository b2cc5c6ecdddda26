"""Multiple choice by likelihood: the model chooses the text that is likeliest after the context.

Small models do not follow an instruction to name a letter, but any model has likelihoods, hence this metric. It is
scored as lm_eval does, so that both numbers can be compared: the space before a choice belongs to the choice, the
normalised score divides by the choice's characters, so that long ones are not at a disadvantage, and exemplars are
drawn for each item anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from colmlm.model.evaluate.continuations import Likelihood, Pair, encoded, without_lookups
from colmlm.model.lm.checkpoint import Checkpoint

ITEMS_TOGETHER = 16
Likely = Callable[[Sequence[Pair]], Sequence[Likelihood]]


@dataclass(frozen=True, slots=True)
class Item:
    """A context, the choices that may follow it after a space, and the index of the right one."""

    context: str
    choices: tuple[str, ...]
    answer: int

    @property
    def solved(self) -> str:
        return f"{self.context} {self.choices[self.answer]}"


@dataclass(frozen=True, slots=True)
class ScoredChoices:
    """The log-probability of each choice of an item, and whether the likeliest is right, in all and per character."""

    logprobs: tuple[float, ...]
    is_right: bool
    is_right_by_character: bool


def with_shots(items: Sequence[Item], shots: Sequence[Item], count: int, seed: int) -> Iterator[Item]:
    """Puts `count` solved exemplars before each item, drawn from `shots` as lm_eval draws them."""
    rng = random.Random(seed)
    for item in items:
        solved = [shot.solved for shot in rng.sample(list(shots), count)] if count else []
        yield replace(item, context="\n\n".join([*solved, item.context]))


def choose(
    checkpoint: Checkpoint, items: Sequence[Item], likely: Likely | None = None
) -> list[ScoredChoices]:
    """Lets the model choose; `likely` scores with lookups (`continuations.WithLookups`), by default without.

    Raises `ValueError` if an item exceeds its context.
    """
    chosen: list[ScoredChoices] = []
    for start in range(0, len(items), ITEMS_TOGETHER):
        some = items[start : start + ITEMS_TOGETHER]
        pairs = [
            encoded(checkpoint.tokenizer, item.context, f" {choice}")
            for item in some
            for choice in item.choices
        ]
        scores = iter(without_lookups(checkpoint, pairs) if likely is None else likely(pairs))
        chosen += [_chosen(item, [next(scores).logprob for _ in item.choices]) for item in some]
    return chosen


def _chosen(item: Item, logprobs: Sequence[float]) -> ScoredChoices:
    by_character = [logprob / len(choice) for logprob, choice in zip(logprobs, item.choices, strict=True)]
    return ScoredChoices(
        logprobs=tuple(logprobs),
        is_right=max(range(len(logprobs)), key=logprobs.__getitem__) == item.answer,
        is_right_by_character=max(range(len(logprobs)), key=by_character.__getitem__) == item.answer,
    )
