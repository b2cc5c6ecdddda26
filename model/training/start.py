"""The model that a training run starts from: random weights, a base model, or a checkpoint (section 3.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from colmlm.model.lm.base_models import WEIGHTS, resolve_base, weights_digest
from colmlm.model.lm.checkpoint import (
    adapted,
    base_of,
    compute_dtype,
    config_of,
    same_vocabulary,
    tokenizer_at,
    with_token_rows,
)
from colmlm.model.lm.config import CONFIG_FILE, CheckpointConfig, CheckpointError
from colmlm.model.lm.language_model import FactLM, model_at
from colmlm.model.text.markup import STANDARD, Markup
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training.config import RANDOM, Architecture, TrainConfig

LORA_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True, slots=True)
class Start:
    """A model ready to be trained, and what its checkpoint will record about it.

    `kind` is how the run is saved: "adapter" (LoRA and token rows over `base`) or "full". `base` is None for random
    weights; `base_sha256` digests the initial weights, so that a resumed run can detect that it started from others.
    All trained weights are float32, whatever the precision of the arithmetic.
    """

    lm: FactLM
    tokenizer: FactTokenizer
    kind: str
    base: str | None
    base_sha256: str | None

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the trained weights: an adapter over the base, or all weights with their tokenizer."""
        if isinstance(self.lm.model, PeftModel):
            self.lm.model.save_pretrained(
                str(directory), state_dict=dict(weights), save_embedding_layers=False
            )
        else:
            save_file(dict(weights), directory / WEIGHTS, metadata={"format": "pt"})
            self.lm.causal.config.save_pretrained(directory)
            self.tokenizer.save(directory / "tokenizer.json")


def start(config: TrainConfig, cache: Path) -> Start:
    """Makes the model and the tokenizer that `config` starts with; the same seed gives the same weights.

    Raises `CheckpointError` or `BaseNotFound` if training cannot start from `config.init`.
    """
    torch.manual_seed(config.seed)
    if config.init == RANDOM:
        return _random(config, cache)
    directory, known = located(config, cache)
    if known is not None:
        _may_go_on(config, known)
        if known.kind == "adapter":
            return _from_adapter(config, directory, known)
    return _from_weights(config, directory, known)


def located(config: TrainConfig, cache: Path) -> tuple[Path, CheckpointConfig | None]:
    """Finds the directory of the weights that a run starts from, and the config of the checkpoint if it is one.

    For an adapter it is the directory of its base.
    """
    path = Path(config.init).expanduser()
    known = config_of(path) if (path / CONFIG_FILE).is_file() else None
    if known is not None and known.kind == "adapter":
        return base_of(known, cache), known
    return resolve_base(config.init, cache), known


def tokenizer_of(config: TrainConfig, cache: Path) -> FactTokenizer:
    """Gives the tokenizer of a run, with the tokens of its method."""
    if config.init == RANDOM:
        return FactTokenizer.load(tokenizer_file(config.tokenizer, cache), markup=config.markup)
    directory, known = located(config, cache)
    return _tokenizer(directory, known, config.markup)


def tokenizer_file(name: str, cache: Path) -> Path:
    """Finds the ``tokenizer.json`` of a base model or of a directory; `name` may also be the file itself."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if (path / "tokenizer.json").is_file():
        return path / "tokenizer.json"
    return resolve_base(name, cache) / "tokenizer.json"


def llama_config(architecture: Architecture, tokenizer: FactTokenizer) -> LlamaConfig:
    """Makes the transformers config of an architecture with this tokenizer's vocabulary, added tokens included."""
    return LlamaConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=architecture.width,
        intermediate_size=architecture.ffn,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        max_position_embeddings=architecture.context,
        rms_norm_eps=architecture.norm_epsilon,
        initializer_range=architecture.spread,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        tie_word_embeddings=architecture.tied,
        bos_token_id=tokenizer.end_of_text,
        eos_token_id=tokenizer.end_of_text,
        pad_token_id=None,
    )


def lora_config(config: TrainConfig, shape: Any, tokenizer: FactTokenizer) -> LoraConfig:
    """Makes the config of an adapter on every linear layer of the chosen layers; the added tokens' rows are trained.

    `shape` is the model's own config: where its output layer is not that of the embeddings, both have such rows.
    """
    added: Any = tokenizer.added
    if not shape.tie_word_embeddings:
        added = {"embed_tokens": tokenizer.added, "lm_head": tokenizer.added}
    return LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=LORA_MODULES,
        trainable_token_indices=added if tokenizer.added else None,
        layers_to_transform=_layers(config, shape.num_hidden_layers),
    )


def _random(config: TrainConfig, cache: Path) -> Start:
    assert config.architecture is not None
    tokenizer = tokenizer_of(config, cache)
    model = LlamaForCausalLM(llama_config(config.architecture, tokenizer))
    return Start(_lm(model, config), tokenizer, "full", None, None)


def _from_weights(config: TrainConfig, directory: Path, known: CheckpointConfig | None) -> Start:
    """Starts from a base, or a checkpoint with all its weights: keeps its vocabulary rows and adds missing ones."""
    tokenizer = _tokenizer(directory, known, config.markup)
    frozen = config.adapt == "lora"
    model = model_at(directory, compute_dtype(config.precision) if frozen else torch.float32)
    model = with_token_rows(model, tokenizer)
    same_vocabulary(str(directory), model, tokenizer)
    digest = weights_digest(directory)
    if not frozen:
        return Start(_lm(model, config), tokenizer, "full", _name(config.init), digest)
    lora = lora_config(config, model.config, tokenizer)
    return Start(_lm(get_peft_model(model, lora), config), tokenizer, "adapter", _name(config.init), digest)


def _from_adapter(config: TrainConfig, base: Path, known: CheckpointConfig) -> Start:
    """Starts from an adapter over its own base: trained further, or merged if all weights are to be trained."""
    path = Path(config.init).expanduser()
    tokenizer = tokenizer_at(base, known)
    digest = weights_digest(base)
    further = config.adapt == "lora"
    model = model_at(base, compute_dtype(config.precision) if further else torch.float32)
    model = with_token_rows(model, tokenizer)
    same_vocabulary(str(base), model, tokenizer)
    if further:
        _same_adapter(config, path, model.config.num_hidden_layers)
        peft = adapted(model, path, trainable=True)
        return Start(_lm(peft, config), tokenizer, "adapter", known.base, digest)
    merged = adapted(model, path).merge_and_unload().requires_grad_(True)
    if known.method != config.method:  # a standard model, without rows for added tokens
        tokenizer = FactTokenizer(tokenizer.tokenizer, markup=config.markup, space_inside=known.space_inside)
        merged = with_token_rows(merged, tokenizer)
    return Start(_lm(merged, config), tokenizer, "full", known.base, digest)


def _lm(model: PreTrainedModel | PeftModel, config: TrainConfig) -> FactLM:
    return FactLM(model, compute=compute_dtype(config.precision))


def _may_go_on(config: TrainConfig, known: CheckpointConfig) -> None:
    if known.method not in (config.method, STANDARD.method):
        raise CheckpointError(
            f"{config.init}: trained as {known.method}, which has other tokens than {config.method}; "
            f"pass --method {known.method}, or start from a standard model"
        )
    if known.method != config.method and known.kind == "adapter" and config.adapt == "lora":
        raise CheckpointError(
            f"{config.init}: an adapter of a {known.method} model cannot lie under one of a {config.method} model; "
            "export it first with `colmlm checkpoint export`, or train all weights"
        )


def _same_adapter(config: TrainConfig, path: Path, num_layers: int) -> None:
    """Requires that an adapter that is trained further keeps its shape."""
    record = json.loads((path / "adapter_config.json").read_text())
    layers = record.get("layers_to_transform")
    theirs = (record["r"], record["lora_alpha"], len(layers) if layers else None)
    ours = _layers(config, num_layers)
    if theirs != (config.lora_rank, config.lora_alpha, len(ours) if ours else None):
        raise CheckpointError(
            f"{path}: its adapter has rank {theirs[0]}, alpha {theirs[1]} and {theirs[2] or 'all'} layers; "
            "ask for the same, or train all weights"
        )


def _layers(config: TrainConfig, num_layers: int) -> list[int] | None:
    """Gives the layers under the adapter, counted from below; None for all."""
    if config.lora_layers is None or config.lora_layers >= num_layers:
        return None
    return list(range(num_layers - config.lora_layers, num_layers))


def _tokenizer(directory: Path, known: CheckpointConfig | None, markup: Markup) -> FactTokenizer:
    """Reads the tokenizer in `directory`.

    Plain weights whose tokenizer has the tokens are the form that the paper releases, with spaces outside the tags.
    """
    file = directory / "tokenizer.json"
    tokenizer = FactTokenizer.load(file, markup=markup, space_inside=known is None or known.space_inside)
    if known is None and markup.tokens and not tokenizer.num_fresh:
        return FactTokenizer.load(file, markup=markup, space_inside=False)
    return tokenizer


def _name(init: str) -> str:
    """Gives a base's name, or a directory's absolute path, since the checkpoint will be read from elsewhere."""
    path = Path(init).expanduser()
    return str(path.absolute()) if (path / "config.json").is_file() else init
