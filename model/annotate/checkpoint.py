"""Annotators and readers on disk: a directory with ``annotator.json`` and the weights.

These are an adapter over a named base, the difference to that base, or all weights.

As with a checkpoint of Co-LMLM the description holds the digest of every file beside it, since safetensors accepts any
bytes as weights, and an adapter is refused over another base than its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from transformers.utils import logging as transformers_logging

from colmlm.model.annotate.config import MINILM, AnnotatorError, TunerConfig
from colmlm.model.annotate.spans import TAGS
from colmlm.model.lm.checkpoint import (
    MAX_BYTES,
    WEIGHTS,
    compute_device,
    compute_dtype,
    resolve_base,
    ship_adapter,
    with_adapter_from,
)
from colmlm.model.lm.config import (
    DIFFERENCE,
    SEALED_FILES,
    CheckpointError,
    copy_record,
    damaged_file,
    file_digest,
)
from colmlm.model.lm.config import MINILM as MINILM_WHEEL

_RELEASED = Path(__file__).resolve().parent.parent / "released"
RELEASED_SPANS = _RELEASED / "span-annotator-minilm"
RELEASED_QUESTIONS = _RELEASED / "question-generator-135m"
SMALL_READER = _RELEASED / "reader-minilm"  # also reads before the large one, and verifies questions
LARGE_READER = _RELEASED / "reader-mpnet"
RELEASED_READER = SMALL_READER
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
        """Write the description with the digests of the files in `directory`; it must be written last."""
        sealed = [name for name in SEALED_FILES if (directory / name).is_file()]
        record = asdict(self) | {"digests": {name: file_digest(directory / name) for name in sealed}}
        (directory / ANNOTATOR_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")

    @classmethod
    def load(cls, directory: Path, role: str | None = None) -> AnnotatorConfig:
        """Read and check a description. Raises `AnnotatorError` for a damaged or missing file or another role."""
        if not (directory / ANNOTATOR_FILE).is_file():
            raise AnnotatorError(f"{directory}: no {ANNOTATOR_FILE} is there")
        try:
            config = cls(**json.loads((directory / ANNOTATOR_FILE).read_text()))
        except (ValueError, TypeError) as error:
            raise AnnotatorError(f"{directory / ANNOTATOR_FILE} cannot be read ({error})") from error
        if role is not None and config.role != role:
            raise AnnotatorError(f"{directory}: this annotator makes {config.role}, not {role}")
        if name := damaged_file(directory, config.digests):
            raise AnnotatorError(
                f"{directory / name} is not the file that was written with {ANNOTATOR_FILE}: damaged or replaced; "
                "take the annotator again from where it came"
            )
        return config


@dataclass(frozen=True, slots=True)
class LoadedAnnotator:
    """An annotator's model ready for inference, its description, and the file of its tokenizer."""

    config: AnnotatorConfig
    model: Any
    tokenizer_file: Path
    device: torch.device


def load_annotator(path: Path, role: str, cache: Path, *, precision: str = "auto") -> LoadedAnnotator:
    """Load an annotator with its adapter merged and gradients off, on the GPU if there is one.

    Raises `AnnotatorError`, and `BaseNotFound` if the base is not available.
    """
    config = AnnotatorConfig.load(path, role)
    source = path
    if config.kind == "full":
        model = bare_model(role, path, torch.float32)
    else:
        source = base_directory(config.base, cache)
        if file_digest(source / WEIGHTS) != config.training.get("base_sha256"):
            raise AnnotatorError(
                f"{config.name} was trained on another {config.base} than the one in {source}; remove that folder, "
                "and run `colmlm weights`"
            )
        model = bare_model(role, source, torch.float32)
        over = config.kind == "adapter"
        model = with_adapter_from(model, path).merge_and_unload() if over else with_weights(model, path)
    device = compute_device()
    model = model.to(device=device, dtype=compute_dtype(precision)).requires_grad_(False).eval()
    return LoadedAnnotator(config, model, source / "tokenizer.json", device)


def release_annotator(run: Path, target: Path, cache: Path) -> AnnotatorConfig:
    """Write the trained weights of a run with their description, without optimiser state, in at most 16 MB.

    They are its adapter in float16, or the difference of all weights to the base, which `cache` may hold.
    """
    config = AnnotatorConfig.load(run)
    if config.kind == "adapter":
        ship_adapter(run, target, config.base)
    else:
        base = bare_model(config.role, base_directory(config.base, cache), torch.float32)
        ship_difference(load_file(run / WEIGHTS), base, target)
        config = replace(config, kind="difference")
    copy_record(run, target, config.digests)
    for log in run.glob("*.csv"):
        shutil.copyfile(log, target / log.name)
    config.save(target)
    return config


# The base models of annotators and readers, bare or under a new LoRA adapter.

SPANS, QUESTIONS, ANSWERS = "spans", "questions", "answers"
_LABELS = {SPANS: TAGS, ANSWERS: ("start", "end")}
_HEADS = ("classifier", "score")  # of an encoder, of a decoder


def base_directory(base: str, cache: Path) -> Path:
    """Give the directory of a base: all-MiniLM-L6-v2 in its wheel, any other as `resolve_base` finds it."""
    if base != MINILM:
        return resolve_base(base, cache)
    return MINILM_WHEEL.directory() / "model"


def bare_model(role: str, directory: Path, dtype: torch.dtype) -> Any:
    """Load the base as a language model, or as a tagger of words with a new random head for the role's labels."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # transformers would warn of the tagger's new head
    try:
        if role == QUESTIONS:
            return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, local_files_only=True)
        return AutoModelForTokenClassification.from_pretrained(
            directory,
            dtype=dtype,
            local_files_only=True,
            id2label=dict(enumerate(_LABELS[role])),
            label2id={label: number for number, label in enumerate(_LABELS[role])},
        )
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{directory}: the weights cannot be read ({error})") from error


def with_adapter(role: str, model: Any, config: TunerConfig) -> Any:
    """Put `model` under a new adapter on every linear layer of its blocks; a tagger's head is trained whole."""
    assert config.lora_rank is not None
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        **({"task_type": "TOKEN_CLS", "exclude_modules": list(_HEADS)} if role in _LABELS else {}),
    )
    adapted = get_peft_model(model, lora)
    for weights in adapted.parameters():
        if weights.requires_grad:
            weights.data = weights.data.float()  # the copy of a head would have the dtype of its frozen base
    return adapted


# A tuned model as the difference to its base: one byte a number, so that all weights of a small encoder fit
# in 16 MB.
#
# A matrix of the encoder is kept as integers from -127 to 127 with a scale for each row. The difference is
# small beside the weights, so rounding it loses far less than rounding the weights would. Vectors and the
# head are kept in float32.

_SCALE = ".scale"
_MOST = 127


def ship_difference(tuned: Mapping[str, Tensor], base: Any, target: Path) -> None:
    """Write the difference between the tuned weights and the model `base`. Raises `CheckpointError` above 16 MB."""
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
            f"{target}: the difference to the base takes {size} bytes, more than {MAX_BYTES}; "
            "train an adapter in its place, as with --set lora_rank=16"
        )


def with_weights(base: Any, path: Path) -> Any:
    """Give the model `base` with the weights in `path`: all of them, or the difference put onto its own."""
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
    """Tell whether the weights are a matrix of the base model, and not of the new head."""
    return weights.ndim == 2 and name.startswith(f"{base.base_model_prefix}.")
