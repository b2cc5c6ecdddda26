"""The joint objective: next-token loss outside the spans, and two-way InfoNCE (section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def joint(next_token: Tensor, contrastive: Tensor, weight: float) -> Tensor:
    """L = L_NTP + weight * L_CL."""
    return next_token + weight * contrastive


def info_nce(
    facts_ND: Tensor, queries_ND: Tensor, temperature: float, same_NN: Tensor | None = None
) -> Tensor:
    """Mean of fact-to-query and query-to-fact cross-entropy over in-batch negatives.

    Rows are unit vectors and row i of one side belongs to row i of the other. `same_NN` marks pairs that
    are no negatives because they ask the same question (False on the diagonal); they are left out.
    """
    scores_NN = facts_ND @ queries_ND.T / temperature
    if same_NN is not None:
        scores_NN = scores_NN.masked_fill(same_NN, float("-inf"))
    target_N = torch.arange(len(scores_NN), device=scores_NN.device)
    return (F.cross_entropy(scores_NN, target_N) + F.cross_entropy(scores_NN.T, target_N)) / 2


def same_question(questions: Sequence[str]) -> Tensor:
    """[N, N] True where two different rows ask the same question, by its normalised words."""
    words = [" ".join(question.lower().split()) for question in questions]
    index = {text: number for number, text in enumerate(dict.fromkeys(words))}
    group_N = torch.tensor([index[text] for text in words])
    same_NN = group_N[:, None] == group_N[None, :]
    return same_NN & ~torch.eye(len(words), dtype=torch.bool)
