"""The pasts of sequences that are decoded together: keys and values of each, apart from those of the others.

A step multiplies the tokens of all sequences at once, and attends for each sequence alone, in blocks that end at fixed
positions. So the products of a sequence have the same shapes whoever is beside it, except for the number of rows, on
which the last bits of a row do not depend from two rows on (measured, and tested in fp32). What a text becomes is then
the same alone and in any company.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 32  # a block of a longer text ends where the next multiple of this is
_ROOM = 128  # slots that a past is made with


class Past:
    """Keys and values of one sequence, as [layers, 2, kv heads, slots, head_dim]. Token t is in slot t."""

    def __init__(self, like: Tensor, layers: int, kv_heads: int, head_dim: int) -> None:
        self.kv = like.new_zeros(layers, 2, kv_heads, 0, head_dim)

    @property
    def slots(self) -> int:
        return self.kv.shape[3]

    def reserve(self, slots: int) -> None:
        """Makes room for that many tokens."""
        if slots > self.slots:
            layers, two, heads, _, width = self.kv.shape
            grown = self.kv.new_zeros(layers, two, heads, max(slots + _ROOM, 2 * self.slots), width)
            grown[:, :, :, : self.slots] = self.kv
            self.kv = grown


@dataclass(frozen=True, slots=True)
class Piece:
    """The next tokens of a sequence, which stand from position `start` on. Later ones in its past are forgotten."""

    ids: Sequence[int]
    start: int
    past: Past


@dataclass(frozen=True, slots=True)
class _Block:
    """Tokens of one sequence that attend in one product: `at` is the first one's place among all tokens of the step."""

    past: Past
    at: int
    start: int
    length: int
    mask: Tensor | None

    @property
    def end(self) -> int:
        return self.start + self.length


class BlocksOfStep:
    """The attention of one step over the pasts of its pieces. `group` is the number of query heads per key head."""

    def __init__(self, pieces: Sequence[Piece], group: int, scale: float) -> None:
        self.group, self.scale = group, scale
        self.blocks = list(self._blocks(pieces))

    def _blocks(self, pieces: Sequence[Piece]) -> Iterator[_Block]:
        at = 0
        for piece in pieces:
            start, end = piece.start, piece.start + len(piece.ids)
            piece.past.reserve(end)
            while start < end:
                length = min(end, (start // BLOCK + 1) * BLOCK) - start
                yield _Block(piece.past, at, start, length, self._mask(start, length, piece.past.kv))
                at, start = at + length, start + length

    def _mask(self, start: int, length: int, like: Tensor) -> Tensor | None:
        """Hides what comes after each token of a block; a single token sees all that there is."""
        if length == 1:
            return None
        own = torch.arange(start, start + length, device=like.device)
        unseen = torch.arange(start + length, device=like.device) > own[:, None]
        mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device)
        return mask.masked_fill_(unseen, float("-inf")).repeat(self.group, 1)

    def attend(self, layer: int, q_NKGD: Tensor, kv_N2KD: Tensor) -> Tensor:
        """Keeps the keys and values of these tokens; gives what each attends to, as [N, heads * head_dim]."""
        attended = torch.zeros_like(q_NKGD)
        for block in self.blocks:
            here, past = slice(block.at, block.at + block.length), block.past.kv[layer]
            past[:, :, block.start : block.end] = kv_N2KD[here].permute(1, 2, 0, 3)
            k, v = past[None, :, :, : block.end].unbind(1)
            # Query heads that share a key head are folded into the token axis, as if they were further tokens.
            q = q_NKGD[here].permute(1, 2, 0, 3).flatten(1, 2)[None]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=block.mask, scale=self.scale)
            attended[here] = out[0].unflatten(1, (self.group, -1)).permute(2, 0, 1, 3)
        return attended.flatten(1)
