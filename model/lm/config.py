"""The description of a checkpoint, saved beside its weights as JSON."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

CONFIG_FILE = "colmlm.json"
DIFFERENCE = "difference.safetensors"
SEALED_FILES = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "config.json",
    DIFFERENCE,
    "model.safetensors",
    "tokenizer.json",
)


class CheckpointError(ValueError):
    """A directory is no usable checkpoint; the message says what is wrong and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """What a checkpoint directory holds and where it came from.

    `kind` is "adapter" (LoRA and token rows over `base`) or "full" (a plain model with all weights). `method` names its
    markup, which says in what form the model asks for facts, if it does. `training` records the run: config, data hash,
    steps, tokens, seconds, hardware. `decoding` holds what was calibrated after training and changes no key
    (`fact_bias`). `digests` are the SHA-256 of the files beside it that keys depend on: safetensors accepts any bytes
    as weights, so only the digests tell that a file is the one that was written.
    """

    name: str
    kind: str
    base: str | None
    dim: int
    method: str = "co-lmlm"
    space_inside: bool = True
    format: int = 1
    training: dict[str, Any] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def save(self, directory: Path) -> None:
        """Writes the config with the digests of the files in `directory`; it must be the last file written there."""
        sealed = [name for name in SEALED_FILES if (directory / name).is_file()]
        record = asdict(self) | {"digests": {name: file_digest(directory / name) for name in sealed}}
        (directory / CONFIG_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")

    @classmethod
    def load(cls, directory: Path) -> CheckpointConfig:
        record = json.loads((directory / CONFIG_FILE).read_text())
        return cls(**record)


# Files that are checked against their digests.


def file_digest(path: Path) -> str:
    """Computes the SHA-256 of a file, in hexadecimal (270 MB take 0.2 seconds)."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def damaged(directory: Path, digests: Mapping[str, str]) -> str | None:
    """Gives the name of the first file in `directory` that is missing or has another digest than the one recorded."""
    for name, digest in digests.items():
        if not (directory / name).is_file() or file_digest(directory / name) != digest:
            return name
    return None


# LoRA adapters on disk: loaded only if complete, and reduced to a size that can be shipped.

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
