"""A tuned model as the difference to its base: one byte a number, so that all weights of a small encoder fit in 16 MB.

A matrix of the encoder is kept as integers from -127 to 127 with a scale for each row. The difference is small beside
the weights, so rounding it loses far less than rounding the weights would. Vectors and the head are kept in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from colmlm.model.lm.adapters import MAX_BYTES
from colmlm.model.lm.base_models import WEIGHTS
from colmlm.model.lm.config import DIFFERENCE, CheckpointError

_SCALE = ".scale"
_MOST = 127


def ship_difference(tuned: Mapping[str, Tensor], base: Any, target: Path) -> None:
    """Writes the difference between the tuned weights and the model `base`. Raises `CheckpointError` above 16 MB."""
    target.mkdir(parents=True, exist_ok=True)
    before = base.state_dict()
    kept: dict[str, Tensor] = {}
    for name, weights in tuned.items():
        if torch.equal(weights, before[name]):
            continue
        if _is_matrix(base, name, weights):
            change = weights - before[name]
            scale = change.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / _MOST
            kept[name], kept[name + _SCALE] = (change / scale).round().to(torch.int8), scale
        else:
            kept[name] = weights.contiguous()
    save_file(kept, target / DIFFERENCE, metadata={"format": "pt"})
    if (size := (target / DIFFERENCE).stat().st_size) > MAX_BYTES:
        raise CheckpointError(
            f"{target}: the difference to the base takes {size} bytes, more than {MAX_BYTES}; train an adapter"
        )


def with_weights(base: Any, path: Path) -> Any:
    """Gives the model `base` with the weights in `path`: all of them, or the difference put onto its own."""
    try:
        kept = load_file(path / (DIFFERENCE if (path / DIFFERENCE).is_file() else WEIGHTS))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: the weights cannot be read ({error})") from error
    weights = base.state_dict()
    if unknown := sorted({name.removesuffix(_SCALE) for name in kept} - weights.keys()):
        raise CheckpointError(f"{path}: {len(unknown)} weights are not of its base, {unknown[0]} for one")
    with torch.no_grad():
        for name, stored in kept.items():
            if name.endswith(_SCALE):
                continue
            if name + _SCALE in kept:
                weights[name].add_(stored * kept[name + _SCALE])
            else:
                weights[name].copy_(stored)
    return base


def _is_matrix(base: Any, name: str, weights: Tensor) -> bool:
    """Tells whether the weights are a matrix that the base has, and not one of the new head."""
    return weights.ndim == 2 and name.startswith(f"{base.base_model_prefix}.")
