"""Reduces a finished training run to a size that can be shipped: half-precision weights, no optimiser state."""

from __future__ import annotations

import shutil
from pathlib import Path

from colmlm.model.lm.checkpoint import ship
from colmlm.model.lm.config import CheckpointConfig, CheckpointError
from colmlm.model.training.logs import LOSS_FILE


def release(run: Path, target: Path) -> CheckpointConfig:
    """Writes the adapter of a run as a checkpoint of at most 16 MB: weights, config, loss log."""
    config = CheckpointConfig.load(run)
    if config.kind != "adapter":
        raise CheckpointError(f"{run}: only an adapter is released; export a full checkpoint instead")
    ship(run, target, config.base)
    shutil.copyfile(run / LOSS_FILE, target / LOSS_FILE)
    config.save(target)
    return config
