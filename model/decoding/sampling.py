"""Choosing the next token: repetition penalty, bans, temperature, top-p."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def penalise(logits_V: Tensor, seen: Iterable[int], penalty: float) -> Tensor:
    """Logits with tokens already seen made less likely: divided where positive, multiplied where negative."""
    if penalty == 1.0:
        return logits_V
    ids = torch.tensor(sorted(set(seen)), dtype=torch.long, device=logits_V.device)
    if not len(ids):
        return logits_V
    logits_V = logits_V.clone()
    chosen = logits_V[ids]
    logits_V[ids] = torch.where(chosen > 0, chosen / penalty, chosen * penalty)
    return logits_V


def ban(logits_V: Tensor, token_ids: Sequence[int]) -> Tensor:
    """Logits that leave some tokens no chance. The paper's no-KB setting adds -100 (appendix A); a bound on
    what a model may want would be a way round a ban, and after a miss a way to never end.
    """
    if not token_ids:
        return logits_V
    logits_V = logits_V.clone()
    logits_V[list(token_ids)] = float("-inf")
    return logits_V


def sample(logits_V: Tensor, *, temperature: float, top_p: float, generator: torch.Generator) -> int:
    """One token: the most likely at temperature 0, else drawn from the smallest set of mass `top_p`."""
    if temperature == 0.0:
        return int(logits_V.argmax())
    below_V = logits_V.float() - logits_V.max()  # so that no temperature overflows
    probabilities_V = torch.softmax(below_V / max(temperature, 1e-6), dim=-1)
    ordered_V, order_V = probabilities_V.sort(descending=True)
    outside_V = ordered_V.cumsum(dim=-1) - ordered_V >= top_p
    ordered_V = ordered_V.masked_fill(outside_V, 0.0).cpu()
    return int(order_V[torch.multinomial(ordered_V, 1, generator=generator)])
