"""The base models of annotators and readers, bare or under a new LoRA adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from transformers.utils import logging as transformers_logging

from colmlm.model.annotate.bio import TAGS
from colmlm.model.annotate.config import TunerConfig
from colmlm.model.annotate.presets import MINILM
from colmlm.model.lm import wheels
from colmlm.model.lm.base_models import resolve_base
from colmlm.model.lm.config import CheckpointError

SPANS, QUESTIONS, ANSWERS = "spans", "questions", "answers"
_LABELS = {SPANS: TAGS, ANSWERS: ("start", "end")}


def base_directory(base: str, cache: Path) -> Path:
    """Gives the directory of a base: all-MiniLM-L6-v2 in its wheel, any other as `resolve_base` finds it."""
    if base != MINILM:
        return resolve_base(base, cache)
    return wheels.MINILM.directory() / "model"


def bare(role: str, directory: Path, dtype: torch.dtype) -> Any:
    """Loads the base as a language model, or as a tagger of words with a new random head for the role's labels."""
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
    """Puts `model` under a new adapter on every linear layer of its blocks; a tagger's head is trained whole."""
    assert config.lora_rank is not None
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        **({"task_type": "TOKEN_CLS", "exclude_modules": ["classifier"]} if role in _LABELS else {}),
    )
    adapted = get_peft_model(model, lora)
    for weights in adapted.parameters():
        if weights.requires_grad:
            weights.data = weights.data.float()  # the copy of a head would have the dtype of its frozen base
    return adapted
