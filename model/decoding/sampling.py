"""The choice of the next tokens of a batch: repetition penalty, bans, temperature, top-p."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def penalise(logits_NV: Tensor, seen_NV: Tensor, penalty: float) -> Tensor:
    """Makes tokens already seen less likely: divides positive logits by `penalty` and multiplies negative ones."""
    if penalty == 1.0:
        return logits_NV
    at = seen_NV.nonzero(as_tuple=True)  # few of the vocabulary
    logits = logits_NV[at]
    return logits_NV.index_put(at, torch.where(logits > 0, logits / penalty, logits * penalty))


def add(logits_NV: Tensor, biases: Iterable[tuple[int, int, float]]) -> Tensor:
    """Adds biases to logits, each given as (row, token, bias).

    Minus infinity is a ban: the token cannot be chosen at all. The paper's no-KB setting adds -100 (appendix A), but a
    logit more than 100 above the others would defeat such a ban, and after a miss decoding would then never end.
    """
    if not (listed := list(biases)):
        return logits_NV
    rows, tokens, amounts = zip(*listed, strict=True)
    logits_NV = logits_NV.clone()
    amounts_N = torch.tensor(amounts, dtype=logits_NV.dtype, device=logits_NV.device)
    logits_NV.index_put_((torch.tensor(rows), torch.tensor(tokens)), amounts_N, accumulate=True)
    return logits_NV


def sample(
    logits_NV: Tensor, *, temperature: float, top_p: float, generators: Sequence[torch.Generator]
) -> list[int]:
    """Chooses one token a row: the likeliest at temperature 0, else one drawn from the smallest set of mass `top_p`."""
    if temperature == 0.0:
        return logits_NV.argmax(dim=-1).tolist()
    below_NV = (
        logits_NV.float() - logits_NV.max(dim=-1, keepdim=True).values
    )  # so that no temperature overflows
    probabilities_NV = torch.softmax(below_NV / max(temperature, 1e-6), dim=-1)
    ordered_NV, order_NV = probabilities_NV.sort(dim=-1, descending=True)
    outside_NV = ordered_NV.cumsum(dim=-1) - ordered_NV >= top_p
    ordered_NV = ordered_NV.masked_fill(outside_NV, 0.0).cpu()
    drawn = [
        torch.multinomial(row, 1, generator=own) for row, own in zip(ordered_NV, generators, strict=True)
    ]
    return [int(order_V[at]) for order_V, at in zip(order_NV, drawn, strict=True)]
