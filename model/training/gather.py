"""Communication between the processes of one run. With a single process every function here is the identity.

accelerate starts the process group. These are plain collectives over it, and none is differentiable: gradients are
exchanged explicitly (`model.training.contrast`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
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
    """Give this process's place; (0, 1) before accelerate has started a group."""
    if not (dist.is_available() and dist.is_initialized()):
        return ProcessRank()
    return ProcessRank(dist.get_rank(), dist.get_world_size())


@contextmanager
def with_all_ranks() -> Iterator[None]:
    """Raise `TrainingBroken` where a collective within fails because another rank is gone."""
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
    """Give [world, ...]: this tensor from every process; it must have the same shape in all of them."""
    place = process_rank()
    return tensor[None] if place.world == 1 else torch.stack(_gather(tensor, place))


def gather_lines(line: str, device: torch.device) -> list[str]:
    """Give this line from every process, in the order of their ranks. It must be without line breaks."""
    sent = torch.tensor(list(f"{line}\n".encode()), dtype=torch.uint8, device=device)
    rows, _ = gather_rows(sent[:, None])
    return bytes(rows.flatten().tolist()).decode().split("\n")[:-1]


def _gather(tensor: Tensor, place: ProcessRank) -> list[Tensor]:
    pieces = [torch.empty_like(tensor) for _ in range(place.world)]
    dist.all_gather(pieces, tensor.contiguous())
    return pieces


def accumulation(batch: int, micro: int | None, world: int) -> int:
    """Give how many micro-batches each of `world` processes takes a step.

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
