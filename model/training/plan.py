"""An estimate of what a run needs before it starts: parameters, memory, tokens and GPU hours, each with its formula.

Parameters are counted on a model without storage, and the memory that a layer keeps for its gradient is measured on one
of the same shape. The hours rest on an assumed share of the GPU's peak, which is stated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import get_peft_model
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedConfig

from colmlm.model.lm.checkpoint import compute_dtype
from colmlm.model.lm.language_model import config_at, model_of
from colmlm.model.text.tokens import FactTokenizer
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.gpus import GPUS
from colmlm.model.training.start import llama_config, located, lora_config, tokenizer_of

QUESTION_SHARE = 0.27  # tokens of questions per token of documents in SQuAD's paragraphs, used without shards
HEAD_POSITIONS = 8192  # logits of so many positions are made at once (model.training.losses)
LOGIT_BYTES = 12  # bytes per logit: in the arithmetic's precision, in float32, and the gradients of both


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratios:
    """The ratio of questions' tokens to documents' tokens in the data, and its source."""

    questions: float = QUESTION_SHARE
    source: str = "assumed, as in SQuAD's paragraphs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """The numbers of weights; tied ones count once. `matrices` multiply every token, `head` every scored one."""

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
    def fixed(self) -> int:
        return self.weights + self.gradients + self.optimiser + self.communication + self.logits

    @property
    def total(self) -> int:
        return self.fixed + self.activations


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """The needs of a run.

    `memory` is by parallelism and checkpointing. `most_rows` is how many documents of `max_length` fit beside it in one
    forward: an upper bound for `micro_rows` (or `micro_documents`).
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


def plan(
    config: TrainConfig,
    cache: Path,
    *,
    gpus: int = 1,
    gpu: str = "h100",
    mfu: float = 0.35,
    ratios: Ratios | None = None,
) -> TrainingPlan:
    """Estimates the needs of `config` on `gpus` of this kind, without building a large model or reading weights."""
    ratios = ratios or Ratios()
    shape, tokenizer = _shape(config, cache)
    parameters = count_parameters(config, shape, tokenizer)
    memory = {
        f"{parallel}, activations {name}": _memory(config, shape, parameters, gpus, parallel, layers, ratios)
        for parallel in (("ddp", "fsdp") if gpus > 1 else ("alone",))
        for name, layers in _activations(config, shape).items()
    }
    per_step = _tokens_per_step(config)
    questions = round(per_step * ratios.questions) if config.markup.key else 0
    flop = config.steps * _flop(config, shape, parameters, per_step, questions)
    hours = flop / (GPUS[gpu].peak * mfu) / 3600
    return TrainingPlan(
        parameters=parameters,
        gpus=gpus,
        gpu=gpu,
        mfu=mfu,
        memory=memory,
        most_rows={
            name: max(0, (GPUS[gpu].memory - m.fixed) // max(1, m.activations)) for name, m in memory.items()
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
    """Counts parameters on the meta device, where a model of any size takes no memory."""
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


def saved_bytes(shape: PreTrainedConfig, *, layers: int, tokens: int, bf16: bool, checkpointed: bool) -> int:
    """Measures the bytes that a forward of so many layers and tokens keeps for its gradient, not counting weights."""
    fewer = {"num_hidden_layers": layers, "vocab_size": 8, "pad_token_id": None}
    of_each_layer = {"layer_types": None, "no_rope_layers": None}  # lists that are made anew
    with torch.device("meta"):
        model = model_of(type(shape)(**{**shape.to_dict(), **fewer, **of_each_layer}))
    model.to_empty(device="cpu").train()  # the values of its weights do not matter
    if checkpointed:
        model.activation_checkpointing_enable({"use_reentrant": False})
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


def _shape(config: TrainConfig, cache: Path) -> tuple[PreTrainedConfig, FactTokenizer]:
    """Gives the shape of the model with its added rows, and its tokenizer."""
    tokenizer = tokenizer_of(config, cache)
    if config.architecture is not None:
        return llama_config(config.architecture, tokenizer), tokenizer
    shape = config_at(located(config, cache)[0])
    shape.vocab_size = tokenizer.vocabulary_size
    return shape, tokenizer


def _activations(config: TrainConfig, shape: PreTrainedConfig) -> dict[str, float]:
    """Gives the bytes kept for one token: by all layers whole, or their inputs and one layer whole at a time."""
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
    ratios: Ratios,
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
    config: TrainConfig, shape: PreTrainedConfig, parameters: Parameters, documents: int, questions: int
) -> float:
    """Computes the FLOP of one step; `_formulas` has the formula."""
    backward = 4 if config.adapt == "full" else 2
    twice = (
        2 if config.markup.key and (config.micro_documents or config.micro_rows) else 0
    )  # gradient caching makes an extra forward
    again = 2 if config.checkpointing else 0
    tokens = documents + questions
    of_layers = (2 + backward + twice + again) * parameters.matrices * tokens
    of_head = (2 + backward) * parameters.head * documents * config.ntp_fraction
    attention = 6 * shape.num_hidden_layers * shape.hidden_size * config.max_length * documents
    return float(of_layers + of_head + attention)


def _formulas(ratios: Ratios, mfu: float) -> dict[str, str]:
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
