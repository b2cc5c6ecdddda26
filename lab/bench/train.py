"""`colmlm-lab bench train`: what a step of training asks of a device and of its host, and how fast it runs here.

A GPU waits for its host if a step is many small pieces of work, or if the host asks for a result within it. Both show
without a GPU. Pieces are counted. Torch's device `meta` computes nothing and has no results, so that a step there takes
the host's time alone, and fails if it asks for a result.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from colmlm.lab.bench.machine import seconds_of
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.task import ProcessRank, StepContext
from colmlm.model.training.trainer import Data, JointBatch, JointModule, Trainer

META = torch.device("meta")


@dataclass(slots=True)
class StepCounts:
    """The forwards of a step, the shapes of their input, and the calls of attention."""

    shapes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    attention_calls: int = 0

    @property
    def forwards(self) -> int:
        return self.shapes.total()


class StubLM(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """A language model without layers, behind which only the work of the trainer itself is left."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.model = nn.Identity()
        self.embedding = nn.Embedding(vocabulary, width)

    def hidden(self, ids_BT: Tensor, *_: Any) -> Tensor:
        states_BTD: Tensor = self.embedding(ids_BT)
        return states_BTD

    def logits(self, hidden_ND: Tensor) -> Tensor:
        return hidden_ND @ self.embedding.weight.T


def bench_training(config: TrainConfig, data: Data, cache: Path, home: Path, steps: int) -> dict[str, Any]:
    """Give the counts of the first step, the host's seconds for it, and tokens a second over `steps` steps.

    `batch_seconds` is what the worker takes to make a step's batches. `stub_seconds` and `launch_seconds` are those of
    the trainer without a model, and with it, on a device that computes nothing; medians of five.
    """
    trainer = Trainer(config, data, home / "run", cache, "bench")
    batches = trainer.batches(0)
    report: dict[str, Any] = {
        "documents": len(trainer.source.draw_documents(0)),
        "tokens": sum(batch.num_tokens for batch in batches),
        "pairs": sum(batch.num_pairs for batch in batches),
        "targets": sum(batch.num_targets for batch in batches),
        "batch_seconds": _median_seconds(lambda: trainer.batches(0)),
    }
    if steps:
        speeds = [step.tokens_per_second for step in islice(trainer.run(), steps)]
        report |= {"tokens_per_second": statistics.median(speeds), "tokens_per_second_of_steps": speeds}
    fresh = Trainer(
        replace(config, precision="fp32"), data, home / "meta", cache, "bench"
    )  # meta has no other
    module, context = fresh.module.train().to(META), step_context(fresh, batches)
    with counting(fresh) as counts:
        take_step(fresh, batches, context)
    report |= {
        "forwards": counts.forwards,
        "shapes": sorted(map(list, counts.shapes)),
        "attention_calls": counts.attention_calls,
        "launch_seconds": _median_seconds(lambda: take_step(fresh, batches, context)),
    }
    fresh.module = JointModule(StubLM(fresh.tokenizer.vocabulary_size, 8), module.head_positions).to(META)
    context = step_context(fresh, batches)
    return report | {"stub_seconds": _median_seconds(lambda: take_step(fresh, batches, context))}


def step_context(trainer: Trainer, batches: Sequence[JointBatch]) -> StepContext:
    """Make the context of a step on the device of the trainer's module."""
    (device,) = {parameter.device for parameter in trainer.module.parameters()}
    total = sum(map(trainer.size, batches))
    return StepContext(0, trainer.module, device, ProcessRank(), total, sharded=False)


def take_step(trainer: Trainer, batches: Sequence[JointBatch], context: StepContext) -> Tensor:
    """Compute the gradient of a step and clip it; give its norm."""
    trainer.begin(batches, context)
    for batch in batches:
        loss, _ = trainer.loss(batch, context)
        loss.backward()
    trained = [parameter for parameter in trainer.module.parameters() if parameter.requires_grad]
    norm = nn.utils.clip_grad_norm_(trained, trainer.config.clip_norm)
    for parameter in trained:
        parameter.grad = None
    return norm


@contextmanager
def counting(trainer: Trainer) -> Iterator[StepCounts]:
    """Count what the trainer's model is asked for meanwhile."""
    counts, model = StepCounts(), trainer.lm.causal.model

    def count_forward(_: Any, __: Any, given: dict[str, Any]) -> None:
        counts.shapes[tuple(given["input_ids"].shape)] += 1

    def count_attention(*_: Any) -> None:
        counts.attention_calls += 1

    hooks = [model.register_forward_pre_hook(count_forward, with_kwargs=True)]
    hooks += [layer.self_attn.register_forward_pre_hook(count_attention) for layer in model.layers]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def _median_seconds(work: Any) -> float:
    work()
    return statistics.median(seconds_of(work) for _ in range(5))
