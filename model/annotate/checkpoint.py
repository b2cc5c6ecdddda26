"""Annotators and readers on disk: a directory with ``annotator.json`` and the weights.

These are an adapter over a named base, the difference to that base, or all weights.

As with a checkpoint of Co-LMLM the description holds the digest of every file beside it, since safetensors accepts any
bytes as weights, and an adapter is refused over another base than its own.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from colmlm.model.annotate.base import bare, base_directory
from colmlm.model.annotate.difference import ship_difference, with_weights
from colmlm.model.annotate.errors import AnnotatorError
from colmlm.model.lm.adapters import adapted, ship
from colmlm.model.lm.base_models import WEIGHTS
from colmlm.model.lm.checkpoint import compute_dtype
from colmlm.model.lm.config import SEALED_FILES
from colmlm.model.lm.files import damaged, file_digest

_RELEASED = Path(__file__).resolve().parent.parent / "released"
RELEASED_SPANS = _RELEASED / "span-annotator-minilm"
RELEASED_QUESTIONS = _RELEASED / "question-generator-135m"
RELEASED_READER = _RELEASED / "reader-minilm"
ANNOTATOR_FILE = "annotator.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatorConfig:
    """The description of an annotator's or a reader's directory.

    `role` is "spans", "questions" or "answers", which is a reader's; `kind` is "adapter", "difference" or "full".
    `reading` has the settings for reading texts: window, overlap and, for spans, the threshold. `training` records the
    run, with the digest of the base's weights. `digests` are those of the files beside it.
    """

    name: str
    role: str
    kind: str
    base: str
    reading: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    format: int = 1

    def save(self, directory: Path) -> None:
        """Writes the description with the digests of the files in `directory`; it must be written last."""
        sealed = [name for name in SEALED_FILES if (directory / name).is_file()]
        record = asdict(self) | {"digests": {name: file_digest(directory / name) for name in sealed}}
        (directory / ANNOTATOR_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")

    @classmethod
    def load(cls, directory: Path, role: str | None = None) -> AnnotatorConfig:
        """Reads and checks a description. Raises `AnnotatorError` for a damaged or missing file or another role."""
        if not (directory / ANNOTATOR_FILE).is_file():
            raise AnnotatorError(f"{directory}: no {ANNOTATOR_FILE} is there; name an annotator's directory")
        try:
            config = cls(**json.loads((directory / ANNOTATOR_FILE).read_text()))
        except (ValueError, TypeError) as error:
            raise AnnotatorError(f"{directory / ANNOTATOR_FILE} cannot be read ({error})") from error
        if role is not None and config.role != role:
            raise AnnotatorError(f"{directory}: this annotator makes {config.role}, not {role}")
        if name := damaged(directory, config.digests):
            raise AnnotatorError(
                f"{directory / name} is not the file that was written with {ANNOTATOR_FILE}: damaged or replaced; "
                "take the annotator again from where it came"
            )
        return config


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready for inference, its description, and the file of its tokenizer."""

    config: AnnotatorConfig
    model: Any
    tokenizer_file: Path
    device: torch.device


def load(path: Path, role: str, cache: Path, *, precision: str = "auto") -> Loaded:
    """Loads an annotator with its adapter merged and gradients off, on the GPU if there is one.

    Raises `AnnotatorError`, and `BaseNotFound` if the base is not available.
    """
    config = AnnotatorConfig.load(path, role)
    source = path
    if config.kind == "full":
        model = bare(role, path, torch.float32)
    else:
        source = base_directory(config.base, cache)
        if file_digest(source / WEIGHTS) != config.training.get("base_sha256"):
            raise AnnotatorError(
                f"{config.name}: trained on another {config.base} than the weights in {source}; remove that copy"
            )
        model = bare(role, source, torch.float32)
        over = config.kind == "adapter"
        model = adapted(model, path).merge_and_unload() if over else with_weights(model, path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device=device, dtype=compute_dtype(precision)).requires_grad_(False).eval()
    return Loaded(config, model, source / "tokenizer.json", device)


def release(run: Path, target: Path, cache: Path) -> AnnotatorConfig:
    """Writes what a run has trained with its description, without optimiser state, in at most 16 MB.

    That is its adapter in float16, or the difference of all weights to the base, which `cache` may hold.
    """
    config = AnnotatorConfig.load(run)
    if config.kind == "adapter":
        ship(run, target, config.base)
    else:
        base = bare(config.role, base_directory(config.base, cache), torch.float32)
        ship_difference(load_file(run / WEIGHTS), base, target)
        config = replace(config, kind="difference")
    for log in run.glob("*.csv"):
        shutil.copyfile(log, target / log.name)
    config.save(target)
    return config
