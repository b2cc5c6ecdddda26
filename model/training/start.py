"""The start of a training run: the model that it starts from, and an estimate of what it needs (section 3.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

from colmlm.kb.corpus.training_record import TrainingRecord
from colmlm.model.lm.checkpoint import (
    WEIGHTS,
    base_of,
    compute_dtype,
    config_of,
    resolve_base,
    same_vocabulary,
    tokenizer_at,
    weights_digest,
    with_adapter_from,
    with_token_rows,
)
from colmlm.model.lm.config import CONFIG_FILE, CheckpointConfig, CheckpointError, record_in, record_over
from colmlm.model.lm.language_model import FactLM, config_at, model_at, model_of
from colmlm.model.text.markup import STANDARD, Markup
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training.config import GPUS, RANDOM, Architecture, TrainConfig
from colmlm.model.training.contrast import HEAD_POSITIONS
from colmlm.model.training.forward import GPU_TOKENS

# The model that a run starts from: random weights, a base model, or a checkpoint.

LORA_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True, slots=True)
class Start:
    """A model ready to be trained, and what its checkpoint will record about it.

    `kind` is how the run is saved: "adapter" (LoRA and token rows over `base`) or "full". `base` is None for random
    weights; `base_sha256` digests the initial weights, so that a resumed run can detect that it started from others.
    `record` says what the initial weights were trained on.
    All trained weights are float32, whatever the precision of the arithmetic.
    """

    lm: FactLM
    tokenizer: FactTokenizer
    kind: str
    base: str | None
    base_sha256: str | None
    record: TrainingRecord = field(default_factory=TrainingRecord.begin)

    def save(self, directory: Path, weights: Mapping[str, Tensor], record: TrainingRecord) -> None:
        """Write the trained weights, named as in the run: an adapter over the base, or all with their tokenizer.

        The training record, of the texts that they were trained on, is written with them.
        """
        named = {name.removeprefix("lm.model."): tensor for name, tensor in weights.items()}
        if isinstance(self.lm.model, PeftModel):
            self.lm.model.save_pretrained(str(directory), state_dict=named, save_embedding_layers=False)
            (directory / "README.md").unlink(missing_ok=True)  # peft writes an empty model card
        else:
            save_file(named, directory / WEIGHTS, metadata={"format": "pt"})
            self.lm.causal.config.save_pretrained(directory)
            self.tokenizer.save(directory / "tokenizer.json")
        record.save(directory)

    def checkpoint_config(self, name: str, method: str, training: dict[str, Any]) -> CheckpointConfig:
        return CheckpointConfig(
            name=name,
            kind=self.kind,
            base=self.base,
            dim=self.lm.dim,
            training=training,
            method=method,
            space_inside=self.tokenizer.space_inside,
        )


def start(config: TrainConfig, cache: Path) -> Start:
    """Make the model and the tokenizer that `config` starts with; the same seed gives the same weights.

    Raises `CheckpointError` or `BaseNotFound` if training cannot start from `config.init`.
    """
    torch.manual_seed(config.seed)
    if config.init == RANDOM:
        return _from_random(config, cache)
    directory, known = locate_weights(config, cache)
    if known is None:
        return replace(_from_weights(config, directory, known), record=record_over(config.init))
    _require_continuable(config, known)
    begin = _from_adapter if known.kind == "adapter" else _from_weights
    record = record_in(Path(config.init).expanduser(), known.digests)
    before = record or TrainingRecord.begin(unknown=f"the checkpoint {known.name} has no record")
    return replace(begin(config, directory, known), record=before)


def locate_weights(config: TrainConfig, cache: Path) -> tuple[Path, CheckpointConfig | None]:
    """Find the directory of the weights that a run starts from, and the checkpoint's config (None for a base model).

    For an adapter's checkpoint it is the directory of the adapter's base.
    """
    path = Path(config.init).expanduser()
    known = config_of(path) if (path / CONFIG_FILE).is_file() else None
    if known is not None and known.kind == "adapter":
        return base_of(known, cache), known
    return resolve_base(config.init, cache), known


def tokenizer_of(config: TrainConfig, cache: Path) -> FactTokenizer:
    """Give the tokenizer of a run, with the added tokens of the run's method."""
    if config.init == RANDOM:
        return FactTokenizer.load(tokenizer_file(config.tokenizer, cache), markup=config.markup)
    directory, known = locate_weights(config, cache)
    return _tokenizer(directory, known, config.markup)


def tokenizer_file(name: str, cache: Path) -> Path:
    """Find the ``tokenizer.json`` of a base model or of a directory; `name` may also be the file itself."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if (path / "tokenizer.json").is_file():
        return path / "tokenizer.json"
    return resolve_base(name, cache) / "tokenizer.json"


def llama_config(architecture: Architecture, tokenizer: FactTokenizer) -> LlamaConfig:
    """Make the transformers config of an architecture with this tokenizer's vocabulary, added tokens included."""
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
    """Make the config of an adapter on every linear map of the chosen layers; the added tokens' rows are trained.

    `shape` is the transformers config of the model: if it does not tie embeddings and head, both have such rows.
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


def _from_random(config: TrainConfig, cache: Path) -> Start:
    assert config.architecture is not None
    tokenizer = tokenizer_of(config, cache)
    model = LlamaForCausalLM(llama_config(config.architecture, tokenizer))
    return Start(_lm(model, config), tokenizer, "full", None, None)


def _from_weights(config: TrainConfig, directory: Path, known: CheckpointConfig | None) -> Start:
    """Start from a base model or a full checkpoint: keep its vocabulary rows, and add those of missing tokens."""
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
    """Start from an adapter over its own base: trained further, or merged if all weights are to be trained."""
    path = Path(config.init).expanduser()
    tokenizer = tokenizer_at(base, known)
    digest = weights_digest(base)
    further = config.adapt == "lora"
    model = model_at(base, compute_dtype(config.precision) if further else torch.float32)
    model = with_token_rows(model, tokenizer)
    same_vocabulary(str(base), model, tokenizer)
    if further:
        _require_same_adapter(config, path, model.config.num_hidden_layers)
        peft = with_adapter_from(model, path, trainable=True)
        return Start(_lm(peft, config), tokenizer, "adapter", known.base, digest)
    merged = with_adapter_from(model, path).merge_and_unload().requires_grad_(True)
    if known.method != config.method:  # a standard model, without rows for added tokens
        tokenizer = FactTokenizer(tokenizer.tokenizer, markup=config.markup, space_inside=known.space_inside)
        merged = with_token_rows(merged, tokenizer)
    return Start(_lm(merged, config), tokenizer, "full", known.base, digest)


def _lm(model: PreTrainedModel | PeftModel, config: TrainConfig) -> FactLM:
    return FactLM(model, compute=compute_dtype(config.precision))


def _require_continuable(config: TrainConfig, known: CheckpointConfig) -> None:
    if known.method not in (config.method, STANDARD.method):
        raise CheckpointError(
            f"{config.init}: trained as {known.method}, which has other tokens than {config.method}; "
            f"pass --method {known.method}, or start from a standard model"
        )
    if known.method != config.method and known.kind == "adapter" and config.adapt == "lora":
        raise CheckpointError(
            f"{config.init}: an adapter of a {known.method} model cannot lie under one of a {config.method} model; "
            "pass --adapt full to train all weights, or name an --init of method " + config.method
        )


def _require_same_adapter(config: TrainConfig, path: Path, num_layers: int) -> None:
    """Raise CheckpointError if the run's rank, alpha or layers differ from those of the adapter that it continues."""
    record = json.loads((path / "adapter_config.json").read_text())
    layers = record.get("layers_to_transform")
    theirs = (record["r"], record["lora_alpha"], len(layers) if layers else None)
    ours = _layers(config, num_layers)
    if theirs != (config.lora_rank, config.lora_alpha, len(ours) if ours else None):
        raise CheckpointError(
            f"{path}: its adapter has rank {theirs[0]}, alpha {theirs[1]} and {theirs[2] or 'all'} layers; "
            f"pass --set lora_rank={theirs[0]} --set lora_alpha={theirs[1]} --set lora_layers={theirs[2] or 'none'}, "
            "or train all weights with --adapt full"
        )


def _layers(config: TrainConfig, num_layers: int) -> list[int] | None:
    """Give the indices, from below, of the layers that get an adapter (the top `lora_layers`); None for all layers."""
    if config.lora_layers is None or config.lora_layers >= num_layers:
        return None
    return list(range(num_layers - config.lora_layers, num_layers))


def _tokenizer(directory: Path, known: CheckpointConfig | None, markup: Markup) -> FactTokenizer:
    """Read the tokenizer in `directory`, with the added tokens of `markup`.

    Weights that are no checkpoint (`known`) but have these tokens are as the paper released them: spaces outside tags.
    """
    file = directory / "tokenizer.json"
    tokenizer = FactTokenizer.load(file, markup=markup, space_inside=known is None or known.space_inside)
    if known is None and markup.tokens and not tokenizer.num_fresh:
        return FactTokenizer.load(file, markup=markup, space_inside=False)
    return tokenizer


def _name(init: str) -> str:
    """Give a base model's name, or a directory's absolute path, since a checkpoint may be read from elsewhere."""
    path = Path(init).expanduser()
    return str(path.absolute()) if (path / "config.json").is_file() else init


# An estimate of what a run needs before it starts: parameters, memory, tokens and GPU hours, each with its formula.
#
# Parameters are counted on a model without storage, and the memory that a layer keeps for its gradient is measured
# on one of the same shape. The hours rest on an assumed share of the GPU's peak, which is stated.

QUESTION_SHARE = 0.27  # tokens of questions per token of documents in SQuAD's paragraphs, used without shards
# In the paper's corpora, at 13 tokens a question: 240 million facts in 3 billion tokens of Wikipedia, and the others of
# 2.2 billion in 90 billion tokens of FineWeb-Edu.
WIKIPEDIA_SHARE, FINEWEB_SHARE = 1.04, 0.28
LOGIT_BYTES = 12  # bytes per logit: in the arithmetic's precision, in float32, and the gradients of both


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionRatio:
    """The ratio of questions' tokens to documents' tokens in the data, and the source of that ratio."""

    questions: float = QUESTION_SHARE
    source: str = "assumed, as in SQuAD's paragraphs"

    @classmethod
    def of_preset(cls, config: TrainConfig) -> QuestionRatio:
        """Give the ratio in the corpus of the paper that the run's preset is meant for, or else the assumed one."""
        if config.preset in ("co-lmlm-135m", "co-lmlm-360m"):
            return cls(questions=WIKIPEDIA_SHARE, source="of the paper's Wikipedia, from its counts")
        if config.preset == "co-lmlm-360m-fw":
            return cls(questions=FINEWEB_SHARE, source="of the paper's FineWeb-Edu, from its counts")
        return cls()


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """The numbers of a model's weights; tied ones count once. `matrices` multiply every token, `head` scored tokens."""

    total: int
    trained: int
    matrices: int
    head: int
    largest_layer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """The bytes on each GPU with one document of `max_length` tokens and its questions in a forward."""

    weights: int
    gradients: int
    optimiser: int
    communication: int
    activations: int
    logits: int

    @property
    def fixed_bytes(self) -> int:
        return self.weights + self.gradients + self.optimiser + self.communication + self.logits

    @property
    def total(self) -> int:
        return self.fixed_bytes + self.activations


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """The memory and time that a run needs.

    `memory` and `most_rows` are by kind of parallelism and of checkpointing. `most_rows` documents of `max_length`
    fit in a GPU's forward: it bounds `micro_rows` (or `micro_documents`) and, times `max_length`, `forward_tokens`.
    """

    parameters: Parameters
    gpus: int
    gpu: str
    mfu: float
    memory: dict[str, GpuMemory]
    most_rows: dict[str, int]
    tokens_per_step: int
    question_tokens_per_step: int
    tokens: int
    flop: float
    gpu_hours: float
    days: float
    formulas: dict[str, str]


def plan_run(
    config: TrainConfig,
    cache: Path,
    *,
    gpus: int = 1,
    gpu: str = "h100",
    mfu: float = 0.35,
    ratios: QuestionRatio | None = None,
) -> TrainingPlan:
    """Estimate memory and time on `gpus` GPUs of kind `gpu` at the share `mfu` of their peak. No weights are made."""
    ratios = ratios or QuestionRatio.of_preset(config)
    shape, tokenizer = _shape_and_tokenizer(config, cache)
    parameters = count_parameters(config, shape, tokenizer)
    memory = {
        f"{parallel}, activations {name}": _memory(config, shape, parameters, gpus, parallel, layers, ratios)
        for parallel in (("ddp", "fsdp") if gpus > 1 else ("alone",))
        for name, layers in _activations(config, shape).items()
    }
    per_step = _tokens_per_step(config)
    questions = round(per_step * ratios.questions) if config.markup.key else 0
    flop = config.steps * _flop(config, shape, parameters, per_step, questions, gpus)
    hours = flop / (GPUS[gpu].peak * mfu) / 3600
    return TrainingPlan(
        parameters=parameters,
        gpus=gpus,
        gpu=gpu,
        mfu=mfu,
        memory=memory,
        most_rows={
            name: max(0, (GPUS[gpu].memory - m.fixed_bytes) // max(1, m.activations))
            for name, m in memory.items()
        },
        tokens_per_step=per_step,
        question_tokens_per_step=questions,
        tokens=config.steps * per_step,
        flop=flop,
        gpu_hours=hours,
        days=hours / gpus / 24,
        formulas=_formulas(ratios, mfu),
    )


def count_parameters(config: TrainConfig, shape: PreTrainedConfig, tokenizer: FactTokenizer) -> Parameters:
    """Count the parameters of a run's model on the meta device, where a model of any size takes no memory."""
    with torch.device("meta"):
        model = model_of(shape)
        total = sum(p.numel() for p in model.parameters())
        layer = sum(p.numel() for p in model.model.layers[0].parameters())
        matrices = sum(p.numel() for p in model.model.layers.parameters() if p.ndim == 2)
        if config.adapt == "lora":
            model = get_peft_model(model, lora_config(config, shape, tokenizer))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if config.adapt == "lora":
        total += trained
    return Parameters(
        total=total,
        trained=trained,
        matrices=matrices,
        head=shape.vocab_size * shape.hidden_size,
        largest_layer=max(layer, shape.vocab_size * shape.hidden_size),
    )


def keep_only_layer_inputs(model: Any) -> None:
    """Turn on activation checkpointing: for the gradient each layer keeps only its input and is computed again."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its name from transformers 5.2x on
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def saved_bytes(shape: PreTrainedConfig, *, layers: int, tokens: int, bf16: bool, checkpointed: bool) -> int:
    """Measure the bytes that a forward of so many layers and tokens keeps for its gradient, not counting weights."""
    fewer = {"num_hidden_layers": layers, "vocab_size": 8, "pad_token_id": None}
    of_each_layer = {"layer_types": None, "no_rope_layers": None}  # lists that are made anew
    with torch.device("meta"):
        model = model_of(type(shape)(**{**shape.to_dict(), **fewer, **of_each_layer}))
    model.to_empty(device="cpu").train()  # the values of its weights do not matter
    if checkpointed:
        keep_only_layer_inputs(model)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=bf16),
    ):
        model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in weights)


def _shape_and_tokenizer(config: TrainConfig, cache: Path) -> tuple[PreTrainedConfig, FactTokenizer]:
    """Give the transformers config of a run's model, added tokens included, and its tokenizer, without the weights."""
    tokenizer = tokenizer_of(config, cache)
    if config.architecture is not None:
        return llama_config(config.architecture, tokenizer), tokenizer
    shape = config_at(locate_weights(config, cache)[0])
    shape.vocab_size = tokenizer.vocabulary_size
    return shape, tokenizer


def _activations(config: TrainConfig, shape: PreTrainedConfig) -> dict[str, float]:
    """Give the bytes that a forward keeps for one token, with all activations kept and with them checkpointed."""
    bf16 = compute_dtype(config.precision) is torch.bfloat16

    def a_layer(checkpointed: bool) -> float:
        sizes = [
            saved_bytes(shape, layers=layers, tokens=tokens, bf16=bf16, checkpointed=checkpointed)
            for layers, tokens in ((1, 32), (2, 32), (1, 64), (2, 64))
        ]
        return ((sizes[3] - sizes[2]) - (sizes[1] - sizes[0])) / 32

    whole, inputs, layers = a_layer(False), a_layer(True), shape.num_hidden_layers
    return {"kept": layers * whole, "checkpointed": layers * inputs + whole}


def _memory(
    config: TrainConfig,
    shape: PreTrainedConfig,
    parameters: Parameters,
    gpus: int,
    parallel: str,
    activations: float,
    ratios: QuestionRatio,
) -> GpuMemory:
    bf16 = compute_dtype(config.precision) is torch.bfloat16
    frozen = parameters.total - parameters.trained
    weights = 4 * parameters.trained + (2 if bf16 else 4) * frozen
    # during the backward pass autocast keeps a copy of each trained matrix in its precision
    copies = 2 * (parameters.matrices + parameters.head) if bf16 and config.adapt == "full" else 0
    share = gpus if parallel == "fsdp" else 1
    communication = {"alone": 0, "ddp": 4 * parameters.trained, "fsdp": 8 * parameters.largest_layer}
    tokens = config.max_length * (1 + (ratios.questions if config.markup.key else 0))
    return GpuMemory(
        weights=(weights + copies) // share,
        gradients=4 * parameters.trained // share,
        optimiser=8 * parameters.trained // share,
        communication=communication[parallel],
        activations=round(tokens * activations),
        logits=HEAD_POSITIONS * shape.vocab_size * LOGIT_BYTES,
    )


def _tokens_per_step(config: TrainConfig) -> int:
    return (config.batch_rows or config.batch_documents) * config.max_length


def _flop(
    config: TrainConfig,
    shape: PreTrainedConfig,
    parameters: Parameters,
    documents: int,
    questions: int,
    gpus: int,
) -> float:
    """Compute the FLOP of one step; `_formulas` has the formula."""
    backward = 4 if config.adapt == "full" else 2
    tokens = documents + questions
    most = gpus * (config.forward_tokens or GPU_TOKENS)
    is_cut = config.micro_documents or config.micro_rows or tokens > most
    twice = 2 if config.markup.key and is_cut else 0  # gradient caching makes an extra forward
    again = 2 if config.checkpointing else 0
    of_layers = (2 + backward + twice + again) * parameters.matrices * tokens
    of_head = (2 + backward) * parameters.head * documents * config.ntp_fraction
    attention = 6 * shape.num_hidden_layers * shape.hidden_size * config.max_length * documents
    return float(of_layers + of_head + attention)


def _formulas(ratios: QuestionRatio, mfu: float) -> dict[str, str]:
    return {
        "weights": "4 B x trained + 4 B (in bf16 2 B) x frozen + in bf16 2 B x trained matrices (autocast's copies)",
        "gradients": "4 B x trained",
        "optimiser": "8 B x trained (AdamW's two moments in float32)",
        "communication": "ddp: 4 B x trained (buckets); fsdp: 8 B x the largest layer (gathered), all above / GPUs",
        "activations": "tokens in flight x bytes a layer keeps for a token (measured) x layers; checkpointed: each "
        "layer's input, and one layer whole; an adapter keeps somewhat less",
        "logits": f"{HEAD_POSITIONS} positions x vocabulary x {LOGIT_BYTES} B",
        "tokens": "steps x rows (or documents) x max_length: an upper bound where documents are shorter",
        "questions": f"{ratios.questions:.3f} tokens of questions for each of a document ({ratios.source})",
        "flop": "a step: (6 x layers' matrices x all tokens) + (6 x head x documents' tokens x ntp_fraction) + "
        "(6 x layers x width x max_length x documents' tokens, causal attention); an adapter 4 for 6; 2 more "
        "for layers where micro-batches look ahead, and 2 more where activations are checkpointed",
        "gpu_hours": f"flop / (peak x {mfu:.2f}); that share of the peak is an assumption, not a measurement",
    }
