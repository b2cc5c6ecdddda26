"""Continuations scored with lookups equal an oracle that reads whole sequences again and again."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from colmlm.model.decoding.decoder import Decoder
from colmlm.model.evaluate.continuations import (
    LEAST_OPENING,
    Likelihood,
    WithLookups,
    encode_pair,
    without_lookups,
)
from colmlm.model.lm.checkpoint import Checkpoint, load
from colmlm.model.text.markup import ASKER
from tests.model.lookups import FakeLookup, Hit, config
from tests.tiny import tiny_checkpoint

NEVER = FakeLookup(lambda query: None)
CONTEXTS = [f"The capital of country {n} is" for n in range(40)]


def always(value: str) -> FakeLookup:
    return FakeLookup(lambda query: Hit(1, value))


def opening(checkpoint: Checkpoint, ids: list[int]) -> float:
    """Gives the log-probability of a lookup as the next token, with the other tokens of the markup forbidden."""
    logits_V = next_logits(checkpoint, ids)
    closed = [token for token in checkpoint.tokenizer.added if token != checkpoint.tokenizer.fact]
    logits_V[closed] = -math.inf
    return float(torch.log_softmax(logits_V, -1)[checkpoint.tokenizer.fact])


def saying(checkpoint: Checkpoint, ids: list[int], token: int) -> float:
    logits_V = next_logits(checkpoint, ids)
    logits_V[checkpoint.tokenizer.added] = -math.inf
    return float(torch.log_softmax(logits_V, -1)[token])


def next_logits(checkpoint: Checkpoint, ids: list[int]) -> torch.Tensor:
    forward = checkpoint.lm.inference
    with torch.inference_mode():
        logits_1V = forward.logits(forward.states(torch.tensor([ids]))[0, -1:])
    return logits_1V[0].clone()


def oracle(checkpoint: Checkpoint, context: str, after: str, value: str) -> float:
    """Computes the log-probability of `after` if every lookup that is made finds `value`."""
    tokenizer = checkpoint.tokenizer
    before, rest = encode_pair(tokenizer, context, after)
    seen, total = tokenizer.prompt(before), 0.0
    while rest:
        opens = opening(checkpoint, seen)
        wanted = tokenizer.encode(value if tokenizer.decode(seen).endswith(" ") else f" {value}")
        is_made = opens >= math.log(LEAST_OPENING)
        width = len(wanted) if is_made and rest[: len(wanted)] == wanted else 1
        own = sum(saying(checkpoint, seen + rest[:n], rest[n]) for n in range(width))
        own += math.log1p(-math.exp(opens)) if is_made else 0.0
        said, rest = rest[:width], rest[width:]
        if width > 1:
            total += float(np.logaddexp(own, opens))
            seen += [tokenizer.fact, *said, tokenizer.fact_end] if opens > own else said
        else:
            total, seen = total + own, seen + said
    return total


def where(checkpoint: Checkpoint, holds: Callable[[float], bool]) -> str:
    """Finds a context after which the probability of a lookup satisfies `holds`."""
    prompt = checkpoint.tokenizer.prompt
    return next(c for c in CONTEXTS if holds(math.exp(opening(checkpoint, prompt(c)))))


def test_lookups_that_find_nothing_change_nothing(eager: Checkpoint) -> None:
    pairs = [encode_pair(eager.tokenizer, context, " Lima, in the south.") for context in CONTEXTS[:6]]
    with_, without = WithLookups(eager, NEVER)(pairs), without_lookups(eager, pairs)
    assert NEVER.calls and [one.is_greedy for one in with_] == [one.is_greedy for one in without]
    assert [one.logprob for one in with_] == pytest.approx([one.logprob for one in without], abs=1e-6)


@pytest.mark.parametrize("after", [" Lima", " Lima, and Lima is large", " Cusco", "Lima", " Lim"])
def test_a_value_that_is_said_is_likelier_and_another_stands_against_it(
    eager: Checkpoint, after: str
) -> None:
    likely, unlikely = where(eager, lambda p: p > 0.5), where(eager, lambda p: p < LEAST_OPENING)
    for context in (likely, unlikely):
        (found,) = WithLookups(eager, always("Lima"))([encode_pair(eager.tokenizer, context, after)])
        assert found.logprob == pytest.approx(oracle(eager, context, after, "Lima"), abs=1e-6)
    (alone,) = without_lookups(eager, [encode_pair(eager.tokenizer, likely, after)])
    (found,) = WithLookups(eager, always("Lima"))([encode_pair(eager.tokenizer, likely, after)])
    assert (found.logprob > alone.logprob) == (after.startswith(" Lima"))


def test_greedy_is_what_greedy_decoding_says(eager: Checkpoint) -> None:
    context = where(eager, lambda p: p > 0.5)
    for lookup in (always("Lima"), NEVER):
        (said,) = Decoder(eager, lookup).generate([context], config(mode="auto", max_tokens=1))
        scorer, (before, _) = WithLookups(eager, lookup), encode_pair(eager.tokenizer, context, "")
        after = eager.tokenizer.encode(" Lima") if lookup is not NEVER else []
        after += said.tokens
        (likely,) = scorer([(before, after)])
        assert likely.is_greedy
        other = [*after[:-1], (after[-1] + 1) % 256]
        assert not scorer([(before, other)])[0].is_greedy


def test_an_empty_continuation_is_certain_and_one_beyond_the_context_refused(
    checkpoint: Checkpoint, eager: Checkpoint
) -> None:
    assert without_lookups(checkpoint, [([1], [])]) == [Likelihood(0.0, True)]
    assert WithLookups(eager, NEVER)([([1], [])]) == [Likelihood(0.0, True)]
    for score in (WithLookups(eager, NEVER), lambda pairs: without_lookups(checkpoint, pairs)):
        with pytest.raises(ValueError, match="exceeds the model's context"):
            score([([1] * 500, [2] * 12)])


def test_only_a_model_whose_states_ask_can_be_scored_with_lookups(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tiny_checkpoint(tmp_path_factory.mktemp("asker"), markup=ASKER)
    with pytest.raises(ValueError, match="asker"):
        WithLookups(load(path, path), NEVER)
