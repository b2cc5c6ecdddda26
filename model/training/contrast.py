"""The contrastive loss over a whole step, however it is cut into micro-batches and processes.

The loss of section 3.2 is not a sum over micro-batches, since every pair is a negative of every other. So its gradient
is computed at the unit vectors of the whole batch, and each micro-batch then propagates its own rows' part of that
gradient back through the model (gradient caching). Each process computes its own rows against the columns of all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from colmlm.model.lm.language_model import FactLM
from colmlm.model.training.task import add_up_tensor, gather_rows


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of a fact and its question: the unit vectors at both, and a number that equal questions share."""

    facts_ND: Tensor
    queries_ND: Tensor
    ids_N: Tensor

    def __len__(self) -> int:
        return len(self.ids_N)

    @classmethod
    def of(cls, parts: Sequence[Pairs]) -> Pairs:
        """Join several sets of pairs into one, in the order of `parts`."""
        return cls(
            torch.cat([pairs.facts_ND for pairs in parts]),
            torch.cat([pairs.queries_ND for pairs in parts]),
            torch.cat([pairs.ids_N for pairs in parts]),
        )

    def to(self, device: torch.device) -> Pairs:
        return Pairs(self.facts_ND.to(device), self.queries_ND.to(device), self.ids_N.to(device))

    def first_pairs(self, count: int) -> Pairs:
        return Pairs(
            self.facts_ND[:count].clone(), self.queries_ND[:count].clone(), self.ids_N[:count].clone()
        )


@dataclass(frozen=True, slots=True)
class PairGradient:
    """The contrastive losses of some pairs of a step, and the gradient of the step's loss at their vectors.

    `losses_N` and `nearest_N` are shares: over all pairs of all processes they add up to the step's loss, and to the
    share of questions whose own fact is nearest. `facts_ND` and `queries_ND` are the gradient of the step's loss.
    """

    facts_ND: Tensor
    queries_ND: Tensor
    losses_N: Tensor
    nearest_N: Tensor

    def split(self, lengths: list[int]) -> list[PairGradient]:
        """Split these losses and gradients into those of micro-batches of `lengths` pairs."""
        columns = (self.facts_ND, self.queries_ND, self.losses_N, self.nearest_N)
        return [PairGradient(*piece) for piece in zip(*(c.split(lengths) for c in columns), strict=True)]

    def surrogate(self, facts_ND: Tensor, queries_ND: Tensor) -> Tensor:
        """Make a scalar with the value of these pairs' loss, whose gradient at their vectors is the step's."""
        linear = (facts_ND * self.facts_ND).sum() + (queries_ND * self.queries_ND).sum()
        return linear - linear.detach() + self.losses_N.sum()


class PairMemory:
    """The vectors of the last `size` pairs of earlier steps, used as further negatives for small batches.

    They come from a slightly older model, which changes little from step to step. With size 0 there are none, as in the
    paper.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pairs: Pairs | None = None

    def extend(self, pairs: Pairs) -> Pairs:
        """Give these pairs followed by the remembered ones."""
        if self.pairs is None:
            return pairs
        self.pairs = self.pairs.to(pairs.ids_N.device)
        return Pairs.of([pairs, self.pairs])

    def remember(self, pairs: Pairs) -> None:
        """Put a step's pairs, those of all processes, before the remembered ones and drop the oldest."""
        if self.size:
            self.pairs = self.extend(pairs).first_pairs(self.size)

    def state(self) -> dict[str, Any]:
        if self.pairs is None:
            return {}
        pairs = self.pairs
        return {"facts": pairs.facts_ND.cpu(), "queries": pairs.queries_ND.cpu(), "ids": pairs.ids_N.cpu()}

    def load(self, state: Mapping[str, Any]) -> None:
        if state:
            self.pairs = Pairs(*(state[name] for name in ("facts", "queries", "ids")))


def contrast_pairs(
    own: Pairs, temperature: float, memory: PairMemory, *, equal_negatives: bool = False
) -> PairGradient:
    """Compute the contrastive loss of a step and its gradient at this process's pairs, and remember the step's pairs.

    With `equal_negatives` the loss is the paper's formula. Without, pairs that ask the same question are no negatives
    of each other: they would be pushed apart though the right answer to both is the same. All processes must call this
    function, even without pairs. If no process has a pair, the losses are empty.
    """
    step, begin = _gather_pairs(own)
    if not len(step):
        empty = own.facts_ND.new_zeros(0)
        return PairGradient(own.facts_ND, own.queries_ND, empty, empty)
    columns = Pairs(
        step.facts_ND.clone().requires_grad_(), step.queries_ND.clone().requires_grad_(), step.ids_N
    )
    candidates = memory.extend(columns)
    here = slice(begin, begin + len(own))
    left_out_NK = same_question(own.ids_N, candidates.ids_N, begin) & (not equal_negatives)
    with torch.enable_grad():
        losses_N = info_nce(
            columns.facts_ND[here],
            columns.queries_ND[here],
            candidates.facts_ND,
            candidates.queries_ND,
            begin,
            temperature,
            left_out_NK,
        ) / len(step)  # fmt: skip
        losses_N.sum().backward()
    memory.remember(step)
    # A row's gradient comes from its own loss and, as a candidate, from the losses of all processes' rows.
    facts_KD, queries_KD = (add_up_tensor(_gradient(c)) for c in (columns.facts_ND, columns.queries_ND))
    return PairGradient(
        facts_KD[here], queries_KD[here], losses_N.detach(), _nearest(own, step, begin) / len(step)
    )


def _gather_pairs(own: Pairs) -> tuple[Pairs, int]:
    facts_KD, begin = gather_rows(own.facts_ND)
    return Pairs(facts_KD, gather_rows(own.queries_ND)[0], gather_rows(own.ids_N)[0]), begin


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _nearest(own: Pairs, step: Pairs, begin: int) -> Tensor:
    """Give [N]: 1.0 for each of the `own` questions whose nearest fact in the step is its own, else 0.0."""
    scores_NK = (own.queries_ND @ step.facts_ND.T).masked_fill(
        same_question(own.ids_N, step.ids_N, begin), -2.0
    )
    own_N = torch.arange(begin, begin + len(own), device=scores_NK.device)
    return (scores_NK.argmax(dim=1) == own_N).float()


# The terms of the joint objective L = L_NTP + weight * L_CL (section 3.2), as sums that processes can share.

HEAD_POSITIONS = 8192  # logits of so many positions at once: 1.6 GB in float32 with SmolLM2's vocabulary
FIXED_TARGETS = 4096  # fixed shapes: targets are padded to a multiple, and the head computes such pieces
NO_TARGET = -100  # in the place of a target that only fills the shape


def next_token_sum(lm: FactLM, states_ND: Tensor, targets_N: Tensor, at_once: int = HEAD_POSITIONS) -> Tensor:
    """Sum -log p(target) over positions, from the states before them. Without positions it is a differentiable 0.

    More positions than `at_once` pass the head in pieces, whose logits are recomputed for the gradient. A position
    whose target is `NO_TARGET` adds nothing.
    """

    def of_piece(states: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(lm.logits(states), targets, reduction="sum", ignore_index=NO_TARGET)

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
    """Give [N]: for each pair the mean of its fact-to-query and its query-to-fact cross-entropy.

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
    """Give [N]: a number for each question, equal for equal words regardless of case and spacing."""
    words = (" ".join(question.lower().split()) for question in questions)
    digests = (hashlib.sha256(text.encode()).digest()[:8] for text in words)
    return torch.tensor([int.from_bytes(digest, signed=True) for digest in digests], dtype=torch.int64)


def same_question(ids_N: Tensor, all_ids_K: Tensor, begin: int) -> Tensor:
    """Give the mask [N, K] of pairs that are no negatives: they ask the same question, and are not the pair itself."""
    same_NK = ids_N[:, None] == all_ids_K[None, :]
    own_N = torch.arange(len(ids_N), device=ids_N.device)
    same_NK[own_N, begin + own_N] = False
    return same_NK
