"""How sequences share a forward: padded to groups of like length, or packed into rows that hold several.

Packed sequences do not see each other: positions begin anew in each, from which transformers makes a mask that keeps
them apart (`create_causal_mask`, where no mask is given). Attention kernels of the flash family know sequences apart
only in a batch of one row, so there everything goes into one row, which needs no mask at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.lm import FactLM
from model.tokens import Encoded


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of token ids and positions, and where each sequence lies: ``(row, start)`` in the order they were given."""

    ids_RT: Tensor
    positions_RT: Tensor
    places: dict[int, tuple[int, int]]


def forward(
    lm: FactLM,
    sequences: Sequence[Encoded],
    *,
    layout: str = "padded",
    row_length: int = 512,
    max_tokens: int = 8192,
    keep: Sequence[Sequence[int]] | None = None,
) -> list[Tensor]:
    """The states of each sequence, in order: [T_i, D], or only those at the positions in `keep`.

    `layout` is "padded" or "packed" and changes nothing but the time: a forward takes at most `max_tokens` tokens with
    the padding, more only where one sequence has more.
    """
    if layout == "padded":
        return lm.forward_sequences(sequences, max_tokens=max_tokens, keep=keep)
    states: list[Tensor] = [torch.empty(0)] * len(sequences)
    flat = str(lm.causal.config._attn_implementation).startswith("flash")
    for rows in batches([len(s) for s in sequences], max_tokens if flat else row_length, max_tokens):
        packed = pack(sequences, rows)
        hidden_RTD = lm.hidden(packed.ids_RT.to(lm.device), packed.positions_RT.to(lm.device))
        for i, (row, start) in packed.places.items():
            here = hidden_RTD[row, start : start + len(sequences[i])]
            states[i] = here if keep is None else here[list(keep[i])]
    return states


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


def batches(lengths: Sequence[int], row_length: int, max_tokens: int) -> list[list[list[int]]]:
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


def pack(sequences: Sequence[Encoded], rows: Sequence[Sequence[int]]) -> Packed:
    """These rows as tensors. What is left of a row is a sequence by itself, which nothing looks at."""
    width = max(sum(len(sequences[i]) for i in row) for row in rows)
    ids_RT = torch.zeros(len(rows), width, dtype=torch.long)
    positions_RT = torch.zeros(len(rows), width, dtype=torch.long)
    places: dict[int, tuple[int, int]] = {}
    for number, row in enumerate(rows):
        at = 0
        for i in row:
            end = at + len(sequences[i])
            ids_RT[number, at:end] = torch.tensor(sequences[i].ids)
            positions_RT[number, at:end] = torch.arange(end - at)
            places[i] = (number, at)
            at = end
        positions_RT[number, at:] = torch.arange(width - at)
    return Packed(ids_RT, positions_RT, places)
