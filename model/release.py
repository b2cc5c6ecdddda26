"""Make a finished training run small enough to ship: weights in half precision, no optimiser state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import ADAPTER, CheckpointError
from model.config import CheckpointConfig
from model.training.logs import LOSS_FILE

ADAPTER_CONFIG = "adapter_config.json"
MAX_BYTES = 16 * 1000 * 1000


def release(run: Path, target: Path) -> CheckpointConfig:
    """Write the adapter of a run as a checkpoint of at most 16 MB: float16 weights, config, loss log.

    float16 keeps more of these small numbers than bfloat16; loading brings them back to float32.
    """
    config = CheckpointConfig.load(run)
    if config.kind != "adapter":
        raise CheckpointError(f"{run}: only an adapter is released; export a full checkpoint instead")
    target.mkdir(parents=True, exist_ok=True)
    weights = {name: w.to(torch.float16) for name, w in load_file(run / ADAPTER).items()}
    save_file(weights, target / ADAPTER, metadata={"format": "pt"})
    if (size := (target / ADAPTER).stat().st_size) > MAX_BYTES:
        raise CheckpointError(
            f"{run}: the adapter takes {size} bytes, more than {MAX_BYTES}; train a lower rank"
        )
    adapter = json.loads((run / ADAPTER_CONFIG).read_text())
    adapter["base_model_name_or_path"] = config.base  # not a path of the machine that trained it
    adapter["target_modules"] = sorted(adapter["target_modules"])
    (target / ADAPTER_CONFIG).write_text(json.dumps(adapter, indent=2, sort_keys=True) + "\n")
    shutil.copyfile(run / LOSS_FILE, target / LOSS_FILE)
    config.save(target)
    return config
