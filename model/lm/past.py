"""The pasts of sequences that are decoded together: keys and values of each, apart from those of the others.

A step multiplies the tokens of all sequences at once, and attends for each sequence alone, in blocks that end at fixed
positions. So the products of a sequence have the same shapes whoever is beside it, except for the number of rows, on
which the last bits of a row do not depend from two rows on (measured, and tested in fp32). What a text becomes is then
the same alone and in any company.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 32  # a block of a longer text ends where the next multiple of this is
DEEP = 2048  # from this position on at half of that, since a block's attention costs as much as there is before it
_ROOM = 128  # slots that a past is made with


class Past:
    """Keys and values of one sequence, as [layers, 2, kv heads, slots, head_dim]. Token t is in slot t."""

    def __init__(self, like: Tensor, layers: int, kv_heads: int, head_dim: int) -> None:
        self.kv = like.new_zeros(layers, 2, kv_heads, 0, head_dim)

    @property
    def slots(self) -> int:
        return self.kv.shape[3]

    def reserve(self, slots: int) -> None:
        """Make room for that many tokens."""
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
    """Tokens of one sequence that attend in one product.

    For each layer it has views of the past: `new` is where these tokens are kept, `keys` and `values` end with them.
    They are made once a step, since a view costs about as much as the sums of a short text.
    """

    length: int
    mask: Tensor | None
    new: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]


def block_end(position: int) -> int:
    """Give the position at which the block of the token at `position` ends; it depends on nothing else."""
    size = BLOCK if position < DEEP else BLOCK // 2
    return (position // size + 1) * size


class BlocksOfStep:
    """The attention of one step over the pasts of its pieces. `group` is the number of query heads per key head."""

    def __init__(self, pieces: Sequence[Piece], group: int, scale: float) -> None:
        self.group, self.scale = group, scale
        self.blocks = list(self._blocks(pieces))
        self.lengths = [block.length for block in self.blocks]

    def _blocks(self, pieces: Sequence[Piece]) -> Iterator[_Block]:
        for piece in pieces:
            start, end = piece.start, piece.start + len(piece.ids)
            piece.past.reserve(end)
            while start < end:
                length = min(end, block_end(start)) - start
                yield self._block(piece.past.kv, start, length)
                start += length

    def _block(self, kv: Tensor, start: int, length: int) -> _Block:
        end, mask = start + length, self._mask(start, length, kv)
        new, seen = kv[:, :, :, start:end].unbind(), kv[:, :, None, :, :end]
        return _Block(length, mask, new, seen[:, 0].unbind(), seen[:, 1].unbind())

    def _mask(self, start: int, length: int, like: Tensor) -> Tensor | None:
        """Hide what comes after each token of a block; a single token sees all that there is."""
        if length == 1:
            return None
        own = torch.arange(start, start + length, device=like.device)
        unseen = torch.arange(start + length, device=like.device) > own[:, None]
        mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device)
        return mask.masked_fill_(unseen, float("-inf")).repeat(self.group, 1)

    def attend(self, layer: int, q_NKGD: Tensor, kv_N2KD: Tensor) -> Tensor:
        """Keep the keys and values of these tokens; give what each attends to, as [N, heads * head_dim]."""
        pieces = zip(self.blocks, q_NKGD.split(self.lengths), kv_N2KD.split(self.lengths), strict=True)
        return torch.cat([self._attend_block(block, layer, q, kv) for block, q, kv in pieces])

    def _attend_block(self, block: _Block, layer: int, q_TKGD: Tensor, kv_T2KD: Tensor) -> Tensor:
        """Give what the tokens of one block attend to.

        Query heads that share a key head are folded into the token axis, as if they were further tokens; those of a
        single token lie so already.
        """
        block.new[layer].copy_(kv_T2KD.permute(1, 2, 0, 3))
        is_one = block.length == 1
        q = q_TKGD if is_one else q_TKGD.permute(1, 2, 0, 3).flatten(1, 2)[None]
        out = F.scaled_dot_product_attention(
            q, block.keys[layer], block.values[layer], attn_mask=block.mask, scale=self.scale
        )
        if not is_one:
            out = out[0].unflatten(1, (self.group, -1)).permute(2, 0, 1, 3)
        return out.flatten(1)


# The port of a forward pass for inference: `model.lm.llama` computes it fast, `model.lm.language_model` in
# general.
#
# Token t of a sequence stands in slot t of its past, so tokens are taken back by feeding others at their
# positions.


class RowCache(Protocol):
    """The pasts of several sequences that are read side by side."""

    def reserve(self, slots: int) -> None:
        """Make room for `slots` tokens in each row."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        ...


class ForwardPass(Protocol):
    """The forward pass of one model, over its own weights. `context` is the length of the longest text."""

    context: int

    @property
    def embedding(self) -> Tensor: ...

    def is_of(self, causal: Any) -> bool:
        """Tell whether `causal` still computes with these weights, which were not changed, moved or cast since."""
        ...

    def states(self, ids_BT: Tensor) -> Tensor:
        """Give the [B, T, D] states after the final norm. Right padding needs no mask: attention is causal."""
        ...

    def logits(self, states_ND: Tensor) -> Tensor:
        """Give the [N, V] next-token logits, in float32 (float64 if the model is in float64)."""
        ...

    def past(self) -> Past:
        """Make the empty past of a sequence that is decoded together with others."""
        ...

    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Give the [N, D] states of the tokens of all pieces, one after another; each sees its own past only.

        A piece's states are the same to the last bit whatever the others are (fp32).
        """
        ...

    def cache(self, rows: int) -> Any:
        """Make an empty `RowCache` for that many sequences."""
        ...

    def advance(
        self, ids_BT: Tensor, starts: Sequence[int], cache: Any, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """Give the [B, T, D] states of up to T further tokens a row; row i's tokens begin at position `starts[i]`.

        Tokens that the cache held for a row at these positions or later are forgotten. In row i the first `lengths[i]`
        ids are tokens (None: all), and the states of its padding are zero.
        """
        ...
