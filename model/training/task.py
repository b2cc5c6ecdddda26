"""The interface between the training loop and what it trains, and the metrics of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from colmlm.model.training.config import TrainingBroken

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """The rank of this process, and the number of processes."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def process_rank() -> ProcessRank:
    """Give this process's rank and the number of processes; (0, 1) before accelerate has started a group."""
    if not (dist.is_available() and dist.is_initialized()):
        return ProcessRank()
    return ProcessRank(dist.get_rank(), dist.get_world_size())


@contextmanager
def with_all_ranks() -> Iterator[None]:
    """Raise `TrainingBroken` if a collective operation in this context fails because another rank has ended."""
    try:
        yield
    except RuntimeError as error:  # gloo's has no class of its own
        if process_rank().world == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise TrainingBroken(
            f"another of the {process_rank().world} ranks of this run has ended or is out of reach. Start all of "
            f"them again: the run goes on from its last save. ({str(error).partition('. ')[0]})"
        ) from error


def add_up(values: Sequence[float], device: torch.device) -> list[float]:
    """Sum each value over the processes, in double precision."""
    if process_rank().world == 1:
        return list(values)
    summed = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(summed)
    return [float(value) for value in summed.tolist()]


def largest_of_ranks(values: Sequence[int], device: torch.device) -> list[int]:
    """Give the maximum of each value over the processes."""
    if process_rank().world == 1:
        return list(values)
    greatest = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
    return [int(value) for value in greatest.tolist()]


def add_up_tensor(tensor: Tensor) -> Tensor:
    """Sum the tensor over the processes, elementwise and in place."""
    if process_rank().world > 1:
        dist.all_reduce(tensor)
    return tensor


def gather_rows(rows_ND: Tensor) -> tuple[Tensor, int]:
    """Give the rows of all processes in the order of their ranks, and the index of this process's first row.

    The processes may have different numbers of rows, also none; shorter ones are padded for the exchange.
    """
    place = process_rank()
    if place.world == 1:
        return rows_ND, 0
    counts = _gather(torch.tensor([len(rows_ND)], device=rows_ND.device), place)
    lengths = [int(count) for count in counts]
    padded = rows_ND.new_zeros((max(lengths), *rows_ND.shape[1:]))
    padded[: len(rows_ND)] = rows_ND
    pieces = _gather(padded, place)
    rows = torch.cat([piece[:length] for piece, length in zip(pieces, lengths, strict=True)])
    return rows, sum(lengths[: place.rank])


def gather_equal(tensor: Tensor) -> Tensor:
    """Gather this tensor from every process: [world, ...]. It must have the same shape in all processes."""
    place = process_rank()
    return tensor[None] if place.world == 1 else torch.stack(_gather(tensor, place))


def gather_lines(line: str, device: torch.device) -> list[str]:
    """Gather this line from every process, in the order of their ranks. It must have no line break."""
    sent = torch.tensor(list(f"{line}\n".encode()), dtype=torch.uint8, device=device)
    rows, _ = gather_rows(sent[:, None])
    return bytes(rows.flatten().tolist()).decode().split("\n")[:-1]


def _gather(tensor: Tensor, place: ProcessRank) -> list[Tensor]:
    pieces = [torch.empty_like(tensor) for _ in range(place.world)]
    dist.all_gather(pieces, tensor.contiguous())
    return pieces


def accumulation(batch: int, micro: int | None, world: int) -> int:
    """Compute how many micro-batches each of `world` processes takes in a step.

    The number is such that a batch holds `batch` items on any hardware (appendix A, Compute). `micro` is the maximum
    size of a micro-batch; None: no maximum.
    """
    of_a_process = -(-batch // world)
    return -(-of_a_process // min(micro or of_a_process, of_a_process)) if batch else 1


def micro_batches(items: Sequence[Item], micro: int | None, place: ProcessRank) -> list[Sequence[Item]]:
    """Give this process's items of a batch, cut into micro-batches.

    The batch is cut into pieces of neighbouring items, as equal in size as possible and at least one for each process.
    Every process gets the same number of pieces, and the pieces of all processes in order are the batch. If there are
    fewer items than pieces, some pieces are empty.
    """
    steps = accumulation(len(items), micro, place.world)
    cuts = [len(items) * piece // (steps * place.world) for piece in range(steps * place.world + 1)]
    first = place.rank * steps
    return [items[cuts[piece] : cuts[piece + 1]] for piece in range(first, first + steps)]


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
    """A task that the loop trains: module, steps and loss. Build `module` from the same seed in every process."""

    module: nn.Module

    @abstractmethod
    def steps(self, start: int) -> Iterator[Sequence[MicroBatch]]:
        """Yield, from step `start` on, each step's micro-batches of this process (`process_rank()`).

        Step n must be the same in every run; all processes must have as many micro-batches (`micro_batches`).
        """

    @abstractmethod
    def size(self, micro_batch: MicroBatch) -> int:
        """Count the items that the micro-batch's loss sums over, such as target tokens."""

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
    def resume_identity(self) -> dict[str, str]:
        """Give names and values, or digests, of all that a resumed run must share: data, base, batch, ..."""

    def tokens(self, micro_batch: MicroBatch) -> int:
        """Count the tokens of the micro-batch that the model reads."""
        return self.size(micro_batch)

    def begin(self, micro_batches: Sequence[MicroBatch], context: StepContext) -> None:
        """Prepare the losses of a step; the loop calls it before them, with all micro-batches of this process."""

    def probes(self) -> Sequence[MicroBatch]:
        """Make micro-batches of the first step's data, the smallest first, by which the loop times a step.

        By default there are none, and steps are not fitted to the run's time.
        """
        return ()

    def fit(self, seconds_per_token: float, seconds: float) -> None:
        """Shrink the steps so that several fit into `seconds`; called before the first step, in all processes.

        It also resets what the task keeps between steps, since the probes may have changed that.
        """

    def state(self) -> dict[str, Any]:
        """Give the task's state between steps, to be saved: tensors and plain values, the same in all processes."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the task's state from a save."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of one step: `step`, `tokens` and `seconds` are the run's totals; `done` is the share of it done.

    `parts` are further numbers that the task logs, such as the parts of the loss.
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
        """Give the columns of the step's line in the log, by name, without the step's number."""
        names = ("tokens", "seconds", "loss", "learning_rate", "gradient_norm", "tokens_per_second")
        return {name: getattr(self, name) for name in names} | dict(self.parts)
