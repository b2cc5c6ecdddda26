"""The choice of a token: transformers' penalty, the smallest set of mass p, and no banned token."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, TopPLogitsWarper

from colmlm.model.decoding.decoder import add_biases, penalise_seen, sample_tokens


def logits(seed: int = 0, size: int = 50) -> torch.Tensor:
    return 3 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def draw(values: torch.Tensor, count: int = 2000, **options: float) -> Counter[int]:
    generator = torch.Generator().manual_seed(7)
    settings = {"temperature": 1.0, "top_p": 1.0, **options}
    return Counter(sample_tokens(values[None], generators=[generator], **settings)[0] for _ in range(count))


@pytest.mark.parametrize("penalty", [1.0, 1.2, 0.8])
@pytest.mark.parametrize("seen", [[], [3], [0, 3, 3, 49, 7]])
def test_the_penalty_is_that_of_transformers(penalty: float, seen: list[int]):
    before = torch.stack([logits(), logits(1)])
    given = before.clone()
    marked = torch.zeros(before.shape, dtype=torch.bool)
    marked[1, seen] = True
    ours = penalise_seen(given, marked, penalty)
    ids = torch.tensor([seen], dtype=torch.long)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(ids, before[1:].clone())[0] if seen else before[1]
    torch.testing.assert_close(ours[1], theirs)
    torch.testing.assert_close(ours[0], before[0])
    torch.testing.assert_close(given, before)


def test_a_ban_holds_however_much_the_model_wants_the_token():
    values = logits()
    values[4] = 1e4
    (banned,) = add_biases(values[None], [(0, 4, 7.0), (0, 4, -math.inf)])
    assert sample_tokens(banned[None], temperature=0.0, top_p=1.0, generators=[torch.Generator()]) != [4]
    assert 4 not in draw(banned, temperature=50.0)
    assert values[4] == 1e4 and add_biases(values, []) is values


def test_a_bias_is_added_to_one_token_of_one_row():
    values = torch.stack([logits(), logits(1)])
    biased = add_biases(values, [(1, 3, 2.5)])
    assert biased[1, 3] == values[1, 3] + 2.5
    biased[1, 3] = values[1, 3]
    torch.testing.assert_close(biased, values, rtol=0, atol=0)


def test_rows_are_drawn_each_with_its_own_generator():
    values = torch.stack([logits(seed) for seed in range(4)])
    seeded = [torch.Generator().manual_seed(seed) for seed in range(4)]
    together = sample_tokens(values, temperature=1.0, top_p=0.9, generators=seeded)
    alone = [
        sample_tokens(
            row[None], temperature=1.0, top_p=0.9, generators=[torch.Generator().manual_seed(seed)]
        )[0]
        for seed, row in enumerate(values)
    ]
    assert together == alone


def test_at_temperature_zero_the_likeliest_is_taken():
    for seed in range(20):
        values = logits(seed)
        assert set(draw(values, count=3, temperature=0.0)) == {int(values.argmax())}


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.6, 0.9])
def test_nothing_outside_the_smallest_set_of_mass_p_is_drawn(top_p: float):
    values = logits()
    allowed = set(
        (TopPLogitsWarper(top_p)(torch.zeros(1, 0), values[None])[0].isfinite()).nonzero().flatten().tolist()
    )
    drawn = set(draw(values, top_p=top_p))
    assert drawn <= allowed
    assert len(drawn) == len(allowed) or top_p > 0.5


def test_draws_follow_the_softmax():
    values = torch.tensor([0.0, 1.0, 2.0]).log_softmax(0) * 1.0
    drawn = draw(values, count=6000)
    for token, probability in enumerate(values.exp().tolist()):
        assert drawn[token] / 6000 == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-3, 1e6])
def test_no_temperature_breaks_the_draw(temperature: float):
    (values,) = add_biases(logits()[None] * 100, [(0, 1, -math.inf), (0, 2, -math.inf)])
    drawn = draw(values, count=20, temperature=temperature)
    assert not {1, 2} & set(drawn)
    if temperature < 1e-2:
        assert set(drawn) == {int(values.argmax())}


def test_the_same_seed_draws_the_same():
    assert draw(logits(), count=50) == draw(logits(), count=50)
