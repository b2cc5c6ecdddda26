"""Log-probabilities of texts under the model alone: each token's, given those before it.

Lookups are off, so the tokens of the markup have probability 0, as in decoding without lookups, and the others sum to
one. There is no temperature and no penalty, since these are the model's probabilities and not a sampler's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.text.tokens import length_groups

POSITIONS_AT_ONCE = 256  # a vocabulary is large


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token's log-probability, and the likeliest tokens in its place with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def score(
    checkpoint: Checkpoint,
    sequences: Sequence[Sequence[int]],
    *,
    top: int = 1,
    at_once: int = POSITIONS_AT_ONCE,
) -> list[list[TokenScore]]:
    """Scores the tokens of each sequence except the first, which has none before it.

    Sequences are ids as `FactTokenizer.prompt` gives them. Logits of `at_once` positions are held at a time. Raises
    `ValueError` if a sequence exceeds the context.
    """
    longest = max((len(ids) for ids in sequences), default=0)
    if longest > checkpoint.lm.inference.context:
        raise ValueError(f"{longest} tokens exceed the context of {checkpoint.lm.inference.context}")
    scored: list[list[TokenScore]] = [[] for _ in sequences]
    for group in length_groups([len(ids) for ids in sequences]):
        width = len(sequences[group[0]])
        padded_BT = torch.tensor([[*sequences[i], *[0] * (width - len(sequences[i]))] for i in group])
        with torch.inference_mode():
            states_BTD = checkpoint.lm.inference.states(padded_BT)
            for row, i in enumerate(group):
                scored[i] = _scores(checkpoint, states_BTD[row], sequences[i], top, at_once)
    return scored


def _scores(
    checkpoint: Checkpoint, states_TD: Tensor, ids: Sequence[int], top: int, at_once: int
) -> list[TokenScore]:
    """Scores `ids[1:]`, from the states of the tokens before each."""
    scores: list[TokenScore] = []
    for start in range(0, len(ids) - 1, at_once):
        targets = torch.tensor(ids[start + 1 : start + 1 + at_once], device=states_TD.device)
        logits_NV = checkpoint.lm.inference.logits(states_TD[start : start + len(targets)])
        logits_NV[:, checkpoint.tokenizer.added] = -math.inf
        logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
        own = logprobs_NV.gather(1, targets[:, None])[:, 0].tolist()
        best = logprobs_NV.topk(top, dim=-1) if top else None
        for n, (token, logprob) in enumerate(zip(targets.tolist(), own, strict=True)):
            likeliest = zip(best.indices[n].tolist(), best.values[n].tolist(), strict=True) if best else ()
            scores.append(TokenScore(token, logprob, tuple(likeliest)))
    return scores
