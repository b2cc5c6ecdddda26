"""Choosing a token: as transformers computes the penalty, within the smallest set of mass p, and no banned one."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, TopPLogitsWarper

from model.decoding.sampling import ban, penalise, sample


def logits(seed: int = 0, size: int = 50) -> torch.Tensor:
    return 3 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def draw(values: torch.Tensor, count: int = 2000, **options: float) -> Counter[int]:
    generator = torch.Generator().manual_seed(7)
    settings = {"temperature": 1.0, "top_p": 1.0, **options}
    return Counter(sample(values, generator=generator, **settings) for _ in range(count))


@pytest.mark.parametrize("penalty", [1.0, 1.2, 0.8])
@pytest.mark.parametrize("seen", [[], [3], [0, 3, 3, 49, 7]])
def test_the_penalty_is_that_of_transformers(penalty: float, seen: list[int]):
    before = logits()
    given = before.clone()
    ours = penalise(given, seen, penalty)
    ids = torch.tensor([seen], dtype=torch.long)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(ids, before[None].clone())[0] if seen else before
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(given, before)


def test_a_ban_holds_however_much_the_model_wants_the_token():
    values = logits()
    values[4] = 1e4
    banned = ban(values, [4])
    assert sample(banned, temperature=0.0, top_p=1.0, generator=torch.Generator()) != 4
    assert 4 not in draw(banned, temperature=50.0)
    assert values[4] == 1e4 and ban(values, []) is values


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
    values = ban(logits() * 100, [1, 2])
    drawn = draw(values, count=20, temperature=temperature)
    assert not {1, 2} & set(drawn)
    if temperature < 1e-2:
        assert set(drawn) == {int(values.argmax())}


def test_the_same_seed_draws_the_same():
    assert draw(logits(), count=50) == draw(logits(), count=50)
