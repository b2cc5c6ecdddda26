"""A small task that uses every random generator, whose states a loop must restore when it resumes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from colmlm.model.training.loop import LoopConfig, Schedule
from colmlm.model.training.task import StepContext, Task, micro_batches, process_rank

Rows = list[tuple[Tensor, Tensor]]


class Noisy(nn.Module):
    """Two linear layers with dropout between them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(4, 16), nn.Linear(16, 1), nn.Dropout(dropout)

    def forward(self, inputs_BD: Tensor) -> Tensor:
        return self.second(self.dropout(torch.tanh(self.first(inputs_BD))))[:, 0]


class Toy(Task[Rows]):
    """A regression on rows drawn from the step's number, with noise from Python's and numpy's generators."""

    def __init__(
        self,
        *,
        noise: float = 0.0,
        dropout: float = 0.0,
        batch: int = 12,
        micro: int | None = None,
        data: str = "a",
    ) -> None:
        torch.manual_seed(5)
        self.module: nn.Module = Noisy(dropout)
        self.noise, self.batch, self.micro, self.data = noise, batch, micro, data
        self.carried = 0.0

    def steps(self, start: int) -> Iterator[list[Rows]]:
        number = start
        while True:
            drawn = torch.Generator().manual_seed(number)
            inputs_BD = torch.randn(self.batch, 4, generator=drawn)
            yield micro_batches(
                list(zip(inputs_BD, inputs_BD.sum(dim=1), strict=True)), self.micro, process_rank()
            )
            number += 1

    def size(self, micro_batch: Rows) -> int:
        return len(micro_batch)

    def loss(self, micro_batch: Rows, context: StepContext) -> tuple[Tensor, dict[str, float | Tensor]]:
        if not micro_batch:
            inputs_BD, targets_B = torch.zeros(0, 4), torch.zeros(0)
        else:
            inputs_BD, targets_B = (torch.stack(list(column)) for column in zip(*micro_batch, strict=True))
        noise = self.noise * (random.gauss(0, 1) + float(np.random.standard_normal()) + self.carried)
        outputs_B = context.module(inputs_BD + noise)
        self.carried = (self.carried + 0.1) % 1
        return F.mse_loss(outputs_B, targets_B, reduction="sum") / context.total, {"rows": len(micro_batch)}

    def save(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        save_file(dict(weights), directory / "toy.safetensors")

    def resume_identity(self) -> dict[str, str]:
        return {"data": self.data}

    def state(self) -> dict[str, Any]:
        return {"carried": self.carried}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.carried = state["carried"]


def toy_config(
    steps: int = 6, *, peak: float = 1e-2, max_seconds: float | None = None, save_seconds: float = 300.0
) -> LoopConfig:
    return LoopConfig(
        schedule=Schedule(steps=steps, peak=peak, warmup_steps=2, cooldown=0.5, max_seconds=max_seconds), beta1=0.9,
        beta2=0.95, epsilon=1e-8, weight_decay=0.01, clip_norm=1.0, seed=17, precision="fp32",
        save_seconds=save_seconds, tensorboard=False,
    )  # fmt: skip
