"""The terms of the joint objective L = L_NTP + weight * L_CL (section 3.2), as sums that processes can share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from colmlm.model.lm.language_model import FactLM

HEAD_POSITIONS = 8192  # logits of so many positions at once: 1.6 GB in float32 with SmolLM2's vocabulary


def next_token_sum(lm: FactLM, states_ND: Tensor, targets_N: Tensor, at_once: int = HEAD_POSITIONS) -> Tensor:
    """Sums -log p(target) over positions, from the states before them. Without positions it is a differentiable 0.

    More positions than `at_once` pass the head in pieces, whose logits are recomputed for the gradient.
    """

    def of_piece(states: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(lm.logits(states), targets, reduction="sum")

    if len(targets_N) <= at_once:
        return of_piece(states_ND, targets_N)
    pieces = zip(states_ND.split(at_once), targets_N.split(at_once), strict=True)
    return torch.stack([checkpoint(of_piece, *piece, use_reentrant=False) for piece in pieces]).sum()


def info_nce(
    facts_ND: Tensor,
    queries_ND: Tensor,
    all_facts_KD: Tensor,
    all_queries_KD: Tensor,
    begin: int,
    temperature: float,
    left_out_NK: Tensor,
) -> Tensor:
    """Gives [N]: for each pair the mean of its fact-to-query and its query-to-fact cross-entropy.

    Rows are unit vectors. Pair i is row i of both sides and row ``begin + i`` of both lists of candidates, which hold
    those of all processes and of the memory. Pairs marked in `left_out_NK` are not negatives; a pair's own row is never
    marked.
    """
    own_N = torch.arange(begin, begin + len(facts_ND), device=facts_ND.device)
    losses = [
        F.cross_entropy(
            (rows_ND @ candidates_KD.T / temperature).masked_fill(left_out_NK, float("-inf")),
            own_N,
            reduction="none",
        )
        for rows_ND, candidates_KD in ((facts_ND, all_queries_KD), (queries_ND, all_facts_KD))
    ]
    return (losses[0] + losses[1]) / 2


def question_ids(questions: Sequence[str]) -> Tensor:
    """Gives [N]: a number for each question, equal for equal words regardless of case and spacing."""
    words = (" ".join(question.lower().split()) for question in questions)
    digests = (hashlib.sha256(text.encode()).digest()[:8] for text in words)
    return torch.tensor([int.from_bytes(digest, signed=True) for digest in digests], dtype=torch.int64)


def same_question(ids_N: Tensor, all_ids_K: Tensor, begin: int) -> Tensor:
    """Gives [N, K]: True where another pair asks the same question (no negative); False in a pair's own column."""
    same_NK = ids_N[:, None] == all_ids_K[None, :]
    own_N = torch.arange(len(ids_N), device=ids_N.device)
    same_NK[own_N, begin + own_N] = False
    return same_NK
