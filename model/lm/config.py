"""The description of a checkpoint, saved beside its weights as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from colmlm.model.lm.files import file_digest

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
