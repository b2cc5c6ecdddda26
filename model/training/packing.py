"""Layouts of sequences in a forward: padded in groups of similar length, or packed so that a row holds several.

Packed sequences do not see each other: positions restart in each, and from that transformers makes a mask that
separates them (`create_causal_mask`, where no mask is given). Attention kernels of the flash family separate sequences
only in a batch of one row, so for them everything goes into one row, which needs no mask at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from colmlm.model.text.tokens import Encoded, length_groups


class Rows(NamedTuple):
    """The input of one forward. Without positions each row is one sequence, followed by padding."""

    ids_RT: Tensor
    positions_RT: Tensor | None

    def to(self, device: torch.device) -> Rows:
        return Rows(*(None if tensor is None else tensor.to(device) for tensor in self))


def lay_out(
    sequences: Sequence[Encoded], *, layout: str = "padded", row_length: int = 512, max_tokens: int = 8192
) -> tuple[tuple[Rows, ...], list[int]]:
    """Lays out sequences as rows for successive forwards; also gives the position where each sequence begins.

    Positions are numbered consecutively: those of the first rows, line by line, then those of the second. `layout` is
    "padded" or "packed" and changes nothing but the time. The rows of a forward hold at most `max_tokens` including
    padding, more only where one sequence is longer. Without sequences there is one row of one token.
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
    """Puts sequences, by index, into rows of at most `row_length` tokens: longest first, each into the first with room.

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
    """Groups rows into batches for one forward each, of at most `max_tokens` tokens including padding."""
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
    """Makes tensors of rows; also gives the place where each sequence begins in them, counted line by line.

    The unused end of a packed row is numbered as a sequence of its own, and no result is read from it.
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
