"""LoRA adapters on disk: loaded only if complete, and reduced to a size that can be shipped."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from colmlm.model.lm.config import CheckpointError

ADAPTER = "adapter_model.safetensors"


ADAPTER_CONFIG = "adapter_config.json"


MAX_BYTES = 16 * 1000 * 1000


_SETS = ("target_modules", "modules_to_save", "exclude_modules")  # peft writes these in no fixed order


def adapted(model: Any, path: Path, *, trainable: bool = False) -> PeftModel:
    """Puts `model` under the adapter in `path`. Refuses an incomplete adapter, of which peft only warns."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found missing adapter keys")
            peft = PeftModel.from_pretrained(model, path, is_trainable=trainable)
        stored = set(load_file(path / ADAPTER))
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: the adapter cannot be read ({error})") from error
    if differing := stored ^ set(get_peft_model_state_dict(peft, save_embedding_layers=False)):
        raise CheckpointError(
            f"{path}: the adapter is not whole: {len(differing)} weights, {min(differing)} for one"
        )
    return peft


def ship(run: Path, target: Path, base: str | None) -> None:
    """Writes the adapter of a run in float16, naming `base` as its base. Raises `CheckpointError` above 16 MB.

    float16 keeps more of these small numbers than bfloat16; loading converts them back to float32.
    """
    target.mkdir(parents=True, exist_ok=True)
    weights = {name: w.to(torch.float16) for name, w in load_file(run / ADAPTER).items()}
    save_file(weights, target / ADAPTER, metadata={"format": "pt"})
    if (size := (target / ADAPTER).stat().st_size) > MAX_BYTES:
        raise CheckpointError(
            f"{run}: the adapter takes {size} bytes, more than {MAX_BYTES}; train a lower rank"
        )
    adapter = json.loads((run / ADAPTER_CONFIG).read_text())
    adapter["base_model_name_or_path"] = base  # and not a path on the machine that trained it
    for name, value in adapter.items():
        adapter[name] = sorted(value) if name in _SETS and isinstance(value, list) else value
    (target / ADAPTER_CONFIG).write_text(json.dumps(adapter, indent=2, sort_keys=True) + "\n")
