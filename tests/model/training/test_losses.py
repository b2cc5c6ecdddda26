"""The joint objective against the paper's formulas, written out term by term."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from model.lm import unit
from model.training.losses import info_nce, joint, same_question


def naive(facts: Tensor, queries: Tensor, temperature: float, same: Tensor | None = None) -> float:
    """-1/2B sum of both directions; a pair marked `same` is in no denominator."""
    total, size = 0.0, len(facts)
    for i in range(size):
        for ours, theirs in ((facts, queries), (queries, facts)):
            own = math.exp(float(ours[i] @ theirs[i]) / temperature)
            others = [
                math.exp(float(ours[i] @ theirs[k]) / temperature)
                for k in range(size)
                if same is None or not bool(same[i, k])
            ]
            total += math.log(own / sum(others))
    return -total / (2 * size)


@pytest.fixture
def vectors() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return unit(torch.randn(7, 16, generator=random)), unit(torch.randn(7, 16, generator=random))


@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.0])
def test_info_nce_is_the_papers_formula(vectors: tuple[Tensor, Tensor], temperature: float):
    assert float(info_nce(*vectors, temperature)) == pytest.approx(naive(*vectors, temperature), rel=1e-4)


def test_info_nce_takes_facts_and_questions_alike(vectors: tuple[Tensor, Tensor]):
    facts, queries = vectors
    assert float(info_nce(facts, queries, 0.07)) == pytest.approx(
        float(info_nce(queries, facts, 0.07)), rel=1e-5
    )


def test_the_same_question_twice_is_no_negative(vectors: tuple[Tensor, Tensor]):
    same = same_question(["Who?", "a", " who? ", "b", "c", "WHO?", "d"])
    assert same[0, 2] and same[2, 0] and same[0, 5] and same[2, 5]
    assert int(same.sum()) == 6 and not same.diagonal().any()
    assert float(info_nce(*vectors, 0.07, same)) == pytest.approx(naive(*vectors, 0.07, same), rel=1e-4)


def test_a_batch_that_asks_one_question_only_has_nothing_to_learn(vectors: tuple[Tensor, Tensor]):
    facts, queries = (v.clone().requires_grad_() for v in vectors)
    loss = info_nce(facts, queries, 0.07, same_question(["Who?"] * 7))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert facts.grad is not None and facts.grad.isfinite().all()


def test_true_pairs_far_apart_from_all_else_cost_nothing():
    assert float(info_nce(torch.eye(8), torch.eye(8), 0.07)) < 1e-5
    assert float(info_nce(torch.eye(8), torch.eye(8).roll(1, 0), 0.07)) > 10


def test_the_joint_loss_weighs_the_contrastive_part():
    assert float(joint(torch.tensor(2.0), torch.tensor(4.0), 0.25)) == 3.0
