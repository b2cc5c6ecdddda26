"""The task of tuning a base: the part that the annotators and the reader share."""

from __future__ import annotations

import hashlib
import math
import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from colmlm.model.annotate.checkpoint import (
    AnnotatorConfig,
    bare_model,
    base_directory,
    with_adapter,
    with_weights,
)
from colmlm.model.annotate.config import TunerConfig
from colmlm.model.lm.base_models import WEIGHTS
from colmlm.model.lm.checkpoint import ADAPTER, compute_dtype, with_adapter_from
from colmlm.model.lm.config import CheckpointError, file_digest
from colmlm.model.training.gather import here, micro_batches
from colmlm.model.training.loop import COSINE, Loop, LoopConfig, Progress, Schedule
from colmlm.model.training.task import StepMetrics, Task


class _Sequence(Protocol):
    @property
    def ids(self) -> list[int]: ...


Example = TypeVar("Example", bound=_Sequence)


class TunerTask(Task[Sequence[Example]]):
    """The part that all models tuned from a base share: its adapter, batches of similar length, saved files."""

    role: str
    prefix = ""  # the prefix that the module adds to the model's own names

    def __init__(self, config: TunerConfig, cache: Path, name: str, start: Path | None = None) -> None:
        """Load the base from `cache`, or go on from the weights of the run in `start`, with another schedule."""
        torch.manual_seed(config.seed)  # for the initial weights of the adapter and the head
        self.config, self.name = config, name
        self.source = base_directory(config.base, cache)
        self.base_sha256 = file_digest(self.source / WEIGHTS)
        self.before = None if start is None else _description_of(start, self.role, config, self.base_sha256)
        # A frozen base is kept in the precision of the arithmetic; trained weights are kept in float32.
        if config.lora_rank is None:
            model = bare_model(self.role, self.source, torch.float32)
            self.model = model if start is None else with_weights(model, start)
            return
        model = bare_model(self.role, self.source, compute_dtype(config.precision))
        if start is None:
            self.model = with_adapter(self.role, model, config)
        else:
            self.model = with_adapter_from(model, start, trainable=True)

    def _take(self, examples: Sequence[Example], documents: int) -> None:
        self.examples: Sequence[Example] = examples
        self.num_documents = documents
        self.data_sha256 = _digest(examples)
        lengths = [len(example.ids) for example in examples]
        self.batches = LengthBatches(lengths, self.config.batch, self.config.seed)

    @property
    def num_steps(self) -> int:
        """Give the number of steps of the whole run."""
        return max(1, math.ceil(self.config.epochs * self.batches.per_epoch))

    def run(self, directory: Path, *, save_seconds: float = 180.0) -> Iterator[StepMetrics]:
        """Train in `directory`, which is a loadable annotator from the first save on; resume a run that is there."""
        self.loop: Loop[Sequence[Example]] = Loop(self, self._loop_config(save_seconds), directory)
        yield from self.loop.run()

    @property
    def progress(self) -> Progress:
        """Give how far the run has got."""
        return self.loop.progress

    def _loop_config(self, save_seconds: float) -> LoopConfig:
        config = self.config
        schedule = Schedule(
            kind=COSINE,
            steps=self.num_steps,
            max_seconds=config.max_seconds,
            peak=config.learning_rate,
            final=config.final_learning_rate,
            warmup_steps=round(config.warmup * self.num_steps),
        )
        return LoopConfig(
            schedule=schedule,
            beta1=config.beta1,
            beta2=config.beta2,
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            seed=config.seed,
            precision=config.precision,
            save_seconds=save_seconds,
        )

    def steps(self, start: int) -> Iterator[Sequence[Sequence[Example]]]:
        for chosen in self.batches.starting_at(start):
            yield micro_batches([self.examples[i] for i in chosen], self.config.micro_batch, here())

    def tokens(self, micro_batch: Sequence[Example]) -> int:
        return sum(len(example.ids) for example in micro_batch)

    def fingerprint(self) -> dict[str, str]:
        return {
            "annotator": self.role,
            "data": self.data_sha256,
            "base": self.base_sha256,
            "config": str(asdict(self.config)),
            "start": str(self.before.digests) if self.before else "",
        }

    @abstractmethod
    def reading(self) -> dict[str, Any]:
        """Give the settings with which the finished annotator reads texts."""

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the adapter, or all weights with their tokenizer, and the description last."""
        peft = self.model if isinstance(self.model, PeftModel) else None
        plain = {name.removeprefix(self.prefix): tensor.contiguous() for name, tensor in weights.items()}
        if peft is not None:
            state = get_peft_model_state_dict(peft, state_dict=plain, save_embedding_layers=False)
            save_file({k: v.contiguous() for k, v in state.items()}, directory / ADAPTER)
            peft.peft_config["default"].save_pretrained(str(directory))
        else:
            frozen = {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}
            self.model.save_pretrained(directory, state_dict=frozen | plain)
            (directory / "tokenizer.json").write_bytes((self.source / "tokenizer.json").read_bytes())
        training = self.progress.record() | {
            "config": asdict(self.config),
            "base_sha256": self.base_sha256,
            "data_sha256": self.data_sha256,
            "documents": self.num_documents,
            "examples": len(self.examples),
            "epochs": round(self.progress.step / self.batches.per_epoch, 2),
            **({"before": self.before.training} if self.before else {}),
        }
        AnnotatorConfig(
            name=self.name,
            role=self.role,
            kind="full" if peft is None else "adapter",
            base=self.config.base,
            reading=self.reading(),
            training=training,
        ).save(directory)


def _description_of(start: Path, role: str, config: TunerConfig, base_sha256: str) -> AnnotatorConfig:
    """Give the description of a run to go on from: of this role and base, an adapter or all weights as asked for."""
    before = AnnotatorConfig.load(start, role)
    fits = (before.kind == "adapter") == (config.lora_rank is not None)
    if not fits or before.training.get("base_sha256") != base_sha256:
        raise CheckpointError(
            f"{start}: these are no weights to go on from with this base and this lora_rank"
        )
    return before


def _digest(examples: Iterable[_Sequence]) -> str:
    """Compute the SHA-256 of the examples' contents."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode())
    return digest.hexdigest()


# The order in which an annotator is trained on its examples: seeded, endless, and with little padding.

POOL = 16  # the number of steps whose examples are sorted by length together


class LengthBatches:
    """Batches of examples of similar length; batch n is the same in every run.

    Each epoch is shuffled, then cut into pools of a few steps each. Within a pool examples are sorted by length, so
    that a step needs little padding; then the steps of the epoch are shuffled again. Examples that do not fill the last
    batch are left out of this epoch.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        if not lengths:
            raise ValueError("no examples to train on: the documents have no facts that this annotator needs")
        self.lengths = lengths
        self.batch = min(batch, len(lengths))
        self.seed = seed
        self.per_epoch = len(lengths) // self.batch

    def starting_at(self, step: int) -> Iterator[list[int]]:
        """Yield the batches from step number `step` on, each a list of indices of examples."""
        while True:
            epoch, within = divmod(step, self.per_epoch)
            yield from self._epoch(epoch)[within:]
            step = (epoch + 1) * self.per_epoch

    def _epoch(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self.seed}/{epoch}")
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        order = order[: self.per_epoch * self.batch]
        size = POOL * self.batch
        pools = (
            sorted(order[at : at + size], key=lambda i: -self.lengths[i]) for at in range(0, len(order), size)
        )
        batches = [pool[at : at + self.batch] for pool in pools for at in range(0, len(pool), self.batch)]
        rng.shuffle(batches)
        return batches
