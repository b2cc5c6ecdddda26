"""Log-probabilities of texts under the model alone: each token's, given those before it.

Lookups are off, so the tokens of the markup have probability 0, as in decoding without lookups, and the others sum to
one. There is no temperature and no penalty, since these are the model's probabilities and not a sampler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.text.tokens import length_batches

POSITIONS_AT_ONCE = 256  # a vocabulary is large


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token's log-probability, and the likeliest tokens in its place with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def score_tokens(
    checkpoint: Checkpoint,
    sequences: Sequence[Sequence[int]],
    *,
    top: int = 1,
    at_once: int = POSITIONS_AT_ONCE,
) -> list[list[TokenScore]]:
    """Give the scores of each sequence's tokens without its first.

    Sequences are ids as `FactTokenizer.prompt` gives them. Logits of `at_once` positions are held at a time. Raises
    `ValueError` if a sequence exceeds the context.
    """
    lengths, context, device = (
        list(map(len, sequences)),
        checkpoint.lm.inference.context,
        checkpoint.lm.device,
    )
    if (longest := max(lengths, default=0)) > context:
        raise ValueError(f"a text of {longest} tokens exceeds the model's context, {context}; shorten it")
    scored: list[list[TokenScore]] = [[] for _ in sequences]
    for batch in length_batches(lengths, device=device, longest=context):
        with torch.inference_mode():
            states_BTD = checkpoint.lm.inference.states(batch.pad(sequences, 0, device))
            for row, i in enumerate(batch.numbers):
                scored[i] = scores_of_states(checkpoint, states_BTD[row], sequences[i], top, at_once)
    return scored


def scores_of_states(
    checkpoint: Checkpoint,
    states_TD: Tensor,
    ids: Sequence[int],
    top: int = 1,
    at_once: int = POSITIONS_AT_ONCE,
) -> list[TokenScore]:
    """Give the scores of `ids[1:]`, from the states of the tokens before each."""
    scores: list[TokenScore] = []
    for start in range(0, len(ids) - 1, at_once):
        targets = torch.tensor(ids[start + 1 : start + 1 + at_once], device=states_TD.device)
        logits_NV = checkpoint.lm.inference.logits(states_TD[start : start + len(targets)])
        checkpoint.tokenizer.forbid_markup(logits_NV)
        logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
        own = logprobs_NV.gather(1, targets[:, None])[:, 0].tolist()
        best = logprobs_NV.topk(top, dim=-1) if top else None
        for n, (token, logprob) in enumerate(zip(targets.tolist(), own, strict=True)):
            likeliest = zip(best.indices[n].tolist(), best.values[n].tolist(), strict=True) if best else ()
            scores.append(TokenScore(token, logprob, tuple(likeliest)))
    return scores
