"""A small residual network that corrects keys which a linear map predicts, to be compared with that map."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

Floats = NDArray[np.float32]

_BATCH = 256
_PATIENCE = 10  # epochs without a better figure on what was left out


class ResidualMap(nn.Module):
    """Adds to a predicted key what two layers make of the old one. It begins as the linear map alone."""

    def __init__(self, old_dim: int, new_dim: int, hidden: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(old_dim, hidden), nn.Linear(hidden, new_dim)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, old_ND: Tensor, start_NE: Tensor) -> Tensor:
        made_NE: Tensor = F.normalize(start_NE + self.outer(F.gelu(self.inner(old_ND))), dim=-1)
        return made_NE


def fit_residual(
    old_ND: Floats,
    start_NE: Floats,
    new_NE: Floats,
    *,
    hidden: int = 256,
    epochs: int = 200,
    rate: float = 1e-3,
    seed: int = 0,
) -> Callable[[Floats, Floats], Floats]:
    """Fits the network to the cosine of true keys; a tenth is left out, and training ends where that gets no better.

    `start_NE` should be predicted by a map that was fitted without each fact, else there is nothing left to correct.
    """
    torch.manual_seed(seed)
    order = torch.randperm(len(old_ND))
    old, start, new = (
        torch.from_numpy(rows.astype(np.float32))[order] for rows in (old_ND, start_NE, new_NE)
    )
    out = max(1, len(order) // 10)
    network = ResidualMap(old.shape[1], new.shape[1], hidden)
    optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=0.01)
    best, kept, waited = float("inf"), _copied(network), 0
    for _ in range(epochs):
        for at in range(out, len(order), _BATCH):
            rows = slice(at, at + _BATCH)
            optimiser.zero_grad()
            _loss(network, old[rows], start[rows], new[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        with torch.inference_mode():
            missed = float(_loss(network, old[:out], start[:out], new[:out]))
        best, kept, waited = (missed, _copied(network), 0) if missed < best else (best, kept, waited + 1)
        if waited == _PATIENCE:
            break
    network.load_state_dict(kept)

    @torch.inference_mode()
    def predict(keys_ND: Floats, begun_NE: Floats) -> Floats:
        made: Floats = network(torch.from_numpy(keys_ND), torch.from_numpy(begun_NE)).numpy()
        return made

    return predict


def _loss(network: ResidualMap, old: Tensor, start: Tensor, new: Tensor) -> Tensor:
    return 1 - (network(old, start) * new).sum(dim=-1).mean()


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in network.state_dict().items()}
