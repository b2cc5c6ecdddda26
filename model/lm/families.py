"""The families of models that can be trained, keyed and decoded with, by the `model_type` of their config.

A model is made by the class that stands here and by no other, so no code that comes with weights is ever run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from colmlm.model.lm.config import CheckpointError

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Family:
    """A family by the name people know it by, and the name of its class in transformers.

    `is_fast` says that `model.lm.llama` computes its forward pass where no layer has a window; any other is left to
    transformers' own.
    """

    name: str
    model: str
    is_fast: bool


FAMILIES = {
    "llama": Family("Llama, SmolLM2", "LlamaForCausalLM", True),
    "qwen2": Family("Qwen 2.5", "Qwen2ForCausalLM", True),
    "qwen3": Family("Qwen 3", "Qwen3ForCausalLM", True),
    "smollm3": Family("SmolLM3", "SmolLM3ForCausalLM", True),
    "gemma3_text": Family("Gemma 3, text", "Gemma3ForCausalLM", False),
}
_WITH_PICTURES = {"gemma3": "take the 270m or the 1b, or save its language model by itself"}
# What would change the numbers, and no model of these families has as it is published.
_UNKNOWN = (
    "attn_logit_softcapping", "final_logit_softcapping", "quantization_config", "use_bidirectional_attention",
)  # fmt: skip


def config_at(directory: Path) -> Any:
    """Reads the config of a model. Raises `CheckpointError` where it is none of these families, and names them."""
    try:
        kind = json.loads((directory / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{directory / 'config.json'} cannot be read ({error})") from error
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(f"{type} ({family.name})" for type, family in FAMILIES.items())
        remedy = _WITH_PICTURES.get(str(kind), "take a base of one of these")
        raise CheckpointError(
            f"{directory}: a model of type {kind!r}; what is known here is {known}: {remedy}"
        )
    config = _class_of(kind).config_class.from_pretrained(directory, local_files_only=True)
    if found := [name for name in _UNKNOWN if getattr(config, name, None)]:
        raise CheckpointError(
            f"{directory}: its config.json has {found[0]}, with which nothing here computes"
        )
    return config


def model_at(directory: Path, dtype: torch.dtype) -> Any:
    """Loads the weights of a directory as `dtype`. Raises `CheckpointError` if any is missing."""
    config = config_at(directory)
    transformers_logging.disable_progress_bar()
    try:
        model, loaded = _class_of(config.model_type).from_pretrained(
            directory, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: the weights cannot be read ({error})") from error
    if missing := sorted(loaded["missing_keys"]):
        raise CheckpointError(f"{directory}: {len(missing)} weights are missing, {missing[0]} for one")
    return model


def model_of(config: Any) -> Any:
    """Makes a model of this config, with random weights."""
    return _class_of(config.model_type)(config)


def family_of(config: Any) -> Family:
    """Gives the family of a model with this config."""
    return FAMILIES[config.model_type]


def is_fast(config: Any) -> bool:
    """Tells whether `model.lm.llama` computes the forward pass of a model with this config."""
    layers = getattr(config, "layer_types", None) or ()
    return family_of(config).is_fast and SLIDING not in layers


def _class_of(kind: str) -> Any:
    return getattr(transformers, FAMILIES[kind].model)
