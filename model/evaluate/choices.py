"""Multiple choice by likelihood: the choice whose text is likeliest after the context, with lookups off.

Why this metric: small models follow no instruction to name a letter, and what they find likely can be asked of any of
them. It is scored as lm_eval does, so that its number and ours can be compared: the space before a choice belongs to
the choice, and the normalised score divides by the choice's characters, so that long ones are not at a disadvantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model.checkpoint import Checkpoint
from model.decoding.scoring import score
from model.tokens import FactTokenizer

ITEMS_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Item:
    """A context, what may follow it after a space, and which of these is right."""

    context: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The log-probability of each choice of an item, and whether the likeliest is right, also by the character."""

    logprobs: tuple[float, ...]
    is_right: bool
    is_right_by_character: bool


def choose(checkpoint: Checkpoint, items: Sequence[Item]) -> list[Chosen]:
    """What the model chooses. Raises `ValueError` where an item exceeds its context."""
    chosen: list[Chosen] = []
    for start in range(0, len(items), ITEMS_TOGETHER):
        some = items[start : start + ITEMS_TOGETHER]
        pairs = [
            _encoded(checkpoint.tokenizer, item.context, choice) for item in some for choice in item.choices
        ]
        sequences = [checkpoint.tokenizer.prompt([*context, *choice]) for context, choice in pairs]
        scores = iter(zip(pairs, score(checkpoint, sequences, top=0), strict=True))
        for item in some:
            told = [next(scores) for _ in item.choices]
            likely = [sum(one.logprob for one in scored[-len(choice) :]) for (_, choice), scored in told]
            chosen.append(_chosen(item, likely))
    return chosen


def _encoded(tokenizer: FactTokenizer, context: str, choice: str) -> tuple[list[int], list[int]]:
    """The tokens of a context and of a choice after it, cut where the context's own tokens end."""
    stripped = context.rstrip()
    before = tokenizer.encode(stripped)
    return before, tokenizer.encode(f"{stripped}{context[len(stripped) :]} {choice}")[len(before) :]


def _chosen(item: Item, logprobs: Sequence[float]) -> Chosen:
    by_character = [logprob / len(choice) for logprob, choice in zip(logprobs, item.choices, strict=True)]
    return Chosen(
        logprobs=tuple(logprobs),
        is_right=max(range(len(logprobs)), key=logprobs.__getitem__) == item.answer,
        is_right_by_character=max(range(len(logprobs)), key=by_character.__getitem__) == item.answer,
    )
