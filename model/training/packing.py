"""How sequences share a forward: padded to groups of like length, or packed into rows that hold several.

Packed sequences do not see each other: positions begin anew in each, from which transformers makes a mask that keeps
them apart (`create_causal_mask`, where no mask is given). Attention kernels of the flash family know sequences apart
only in a batch of one row, so there everything goes into one row, which needs no mask at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from colmlm.model.lm.language_model import length_groups
from colmlm.model.text.tokens import Encoded


class Rows(NamedTuple):
    """What goes through the model together. Without positions each row is one sequence, with padding after it."""

    ids_RT: Tensor
    positions_RT: Tensor | None

    def to(self, device: torch.device) -> Rows:
        return Rows(*(None if tensor is None else tensor.to(device) for tensor in self))


def lay_out(
    sequences: Sequence[Encoded], *, layout: str = "padded", row_length: int = 512, max_tokens: int = 8192
) -> tuple[tuple[Rows, ...], list[int]]:
    """Sequences as rows for one forward after another, and where each sequence begins.

    The positions of all rows are numbered on end: those of the first rows, line by line, then those of the second.
    `layout` is "padded" or "packed" and changes nothing but the time. Rows of a forward hold at most `max_tokens` with
    the padding, more only where one sequence has more. One token stands for no sequences at all.
    """
    if not sequences:
        return (Rows(torch.zeros(1, 1, dtype=torch.long), None),), []
    lengths = [len(sequence) for sequence in sequences]
    if layout == "padded":
        batches = [[[i] for i in group] for group in length_groups(lengths, max_tokens=max_tokens)]
    else:
        batches = packed_batches(lengths, row_length, max_tokens)
    made, starts, reached = [], [0] * len(sequences), 0
    for batch in batches:
        rows, places = _rows(sequences, batch, positions=layout == "packed")
        for i, place in places.items():
            starts[i] = reached + place
        made.append(rows)
        reached += rows.ids_RT.numel()
    return tuple(made), starts


def rows_of(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Sequences, by number, in rows of at most `row_length` tokens: each into the first row with room, longest first.

    A longer sequence has a row of its own.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((row for row, left in enumerate(room) if left >= lengths[i]), None)
        if row is None:
            rows.append([i])
            room.append(row_length - lengths[i])
        else:
            rows[row].append(i)
            room[row] -= lengths[i]
    return rows


def packed_batches(lengths: Sequence[int], row_length: int, max_tokens: int) -> list[list[list[int]]]:
    """Rows in the batches that go through the model together, of at most `max_tokens` tokens with padding."""
    sized = [(sum(lengths[i] for i in row), row) for row in rows_of(lengths, row_length)]
    made: list[list[list[int]]] = []
    width = 0
    for size, row in sorted(sized, key=lambda pair: -pair[0]):
        if made and width * (len(made[-1]) + 1) <= max_tokens:
            made[-1].append(row)
        else:
            made.append([row])
            width = size
    return made


def _rows(
    sequences: Sequence[Encoded], rows: Sequence[Sequence[int]], *, positions: bool
) -> tuple[Rows, dict[int, int]]:
    """Rows as tensors, and where each sequence begins in them, counted line by line.

    What is left of a packed row is a sequence by itself, which nothing looks at.
    """
    width = max(sum(len(sequences[i]) for i in row) for row in rows)
    ids_RT = torch.zeros(len(rows), width, dtype=torch.long)
    positions_RT = torch.zeros(len(rows), width, dtype=torch.long)
    places: dict[int, int] = {}
    for number, row in enumerate(rows):
        at = 0
        for i in row:
            end = at + len(sequences[i])
            ids_RT[number, at:end] = torch.tensor(sequences[i].ids)
            positions_RT[number, at:end] = torch.arange(end - at)
            places[i] = number * width + at
            at = end
        positions_RT[number, at:] = torch.arange(width - at)
    return Rows(ids_RT, positions_RT if positions else None), places
