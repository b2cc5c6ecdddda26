"""The interface between the training loop and what it trains, and the metrics of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from colmlm.model.training.gather import ProcessRank

MicroBatch = TypeVar("MicroBatch")


@dataclass(frozen=True, slots=True)
class StepContext:
    """The context of a step that a task's loss needs. `number` counts from 0.

    `module` is the task's module as accelerate prepared it: call this one. `total` is the size of the whole step, over
    all micro-batches and processes. `sharded` says that every forward of a layer needs all processes (FSDP), so that
    all must make equally many.
    """

    number: int
    module: nn.Module
    device: torch.device
    place: ProcessRank
    total: int
    sharded: bool


class Task(ABC, Generic[MicroBatch]):
    """Something that the loop can train. Build `module` from the same seed in every process."""

    module: nn.Module

    @abstractmethod
    def steps(self, start: int) -> Iterator[Sequence[MicroBatch]]:
        """Yield, from step `start` on, each step's micro-batches of this process (`gather.process_rank()`).

        Step n must be the same in every run; all processes must have as many micro-batches (`gather.micro_batches`).
        """

    @abstractmethod
    def size(self, micro_batch: MicroBatch) -> int:
        """Count the items that the micro-batch's loss sums over: targets, for one."""

    @abstractmethod
    def loss(
        self, micro_batch: MicroBatch, context: StepContext
    ) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        """Give the micro-batch's share of the step's loss and of each number to log; shares add up.

        A mean over the step is a sum over the micro-batch divided by `context.total`.
        """

    @abstractmethod
    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a loadable checkpoint into the empty `directory`; called in the first process only.

        `weights` are the module's trainable parameters by name, whole and on the CPU: those of `module` itself may be
        sharded.
        """

    @abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """Give names and values, or digests, of all that a resumed run must share: data, base, batch, ..."""

    def tokens(self, micro_batch: MicroBatch) -> int:
        """Count the tokens of the micro-batch that the model reads."""
        return self.size(micro_batch)

    def begin(self, micro_batches: Sequence[MicroBatch], context: StepContext) -> None:
        """Prepare the losses of a step; called before them with all micro-batches of this process."""

    def probes(self) -> Sequence[MicroBatch]:
        """Make small micro-batches of the first step, the smallest first, by which a step is timed.

        There are none where steps have a fixed size.
        """
        return ()

    def fit(self, seconds_per_token: float, seconds: float) -> None:
        """Shrink the steps so that several fit into these seconds. Called before the first step, in all processes.

        Probes may have changed what the task keeps between steps; this resets it.
        """

    def state(self) -> dict[str, Any]:
        """Give the task's own state between steps: tensors and plain values, the same in all processes."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of one step: `step`, `tokens` and `seconds` count from the run's start; `done` is the share done.

    `parts` are the task's own numbers.
    """

    step: int
    tokens: int
    seconds: float
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    done: float
    parts: Mapping[str, float]

    @property
    def seconds_left(self) -> float:
        """Give the estimated time that is left, at the mean speed so far."""
        return self.seconds * (1 - self.done) / self.done if 0 < self.done < 1 else 0.0

    def row(self) -> dict[str, float]:
        """Give the columns of the log's line, without the step."""
        names = ("tokens", "seconds", "loss", "learning_rate", "gradient_norm", "tokens_per_second")
        return {name: getattr(self, name) for name in names} | dict(self.parts)
