"""The pasts of sequences that are decoded together: keys and values of each, apart from those of the others.

A step multiplies the tokens of all sequences at once, and attends for each sequence alone, in blocks that end at fixed
positions. So the products of a sequence have the same shapes whoever is beside it, except for the number of rows, on
which the last bits of a row do not depend from two rows on (measured, and tested in fp32). What a text becomes is then
the same alone and in any company.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Protocol
from weakref import WeakValueDictionary, finalize

import torch
from torch import Tensor
from torch.nn import functional as F

from colmlm.model.text.tokens import pad_sequences, send

logger = logging.getLogger(__name__)

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
    """The next tokens of a sequence, from position `start` on. They replace what its past holds from there on."""

    ids: Sequence[int]
    start: int
    past: Any  # a `Past`, or a `RowPast` where the forward pass is one over static rows


@dataclass(frozen=True, slots=True)
class _Block:
    """Tokens of one sequence whose attention is computed as one product.

    For each layer it has views of the past: `new` has the slots of these tokens, `keys` and `values` all slots up to
    the last of them. They are made once a step, since a view costs about as much as the attention of a short text.
    """

    length: int
    mask: Tensor | None
    new: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]


def block_end(position: int) -> int:
    """Give the end (exclusive) of the block that holds `position`. It depends on the position alone."""
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
        """Make the mask that hides later slots from each token of a block; None for one token, which sees all slots."""
        if length == 1:
            return None
        own = torch.arange(start, start + length, device=like.device)
        unseen = torch.arange(start + length, device=like.device) > own[:, None]
        mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device)
        return mask.masked_fill_(unseen, float("-inf")).repeat(self.group, 1)

    def attend(self, layer: int, q_NKGD: Tensor, kv_N2KD: Tensor) -> Tensor:
        """Write the tokens' keys and values into their pasts. Give the attention's outputs, [N, heads * head_dim]."""
        pieces = zip(self.blocks, q_NKGD.split(self.lengths), kv_N2KD.split(self.lengths), strict=True)
        return torch.cat([self._attend_block(block, layer, q, kv) for block, q, kv in pieces])

    def _attend_block(self, block: _Block, layer: int, q_TKGD: Tensor, kv_T2KD: Tensor) -> Tensor:
        """Give the attention's outputs for the tokens of one block, [T, heads * head_dim].

        Query heads that share a key head are folded into the token axis, as if they were further tokens; those of a
        single token are laid out so already.
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


class Cache:
    """Keys and values of `rows` sequences, [layers, rows, slots, 2, kv heads, head_dim].

    Token t of a row is in its slot t. Rows get spare slots up to `most`, and more only if `reserve` asks for more.
    """

    def __init__(self, like: Tensor, layers: int, rows: int, kv_heads: int, head_dim: int, most: int) -> None:
        self.kv, self.most = like.new_zeros(layers, rows, 0, 2, kv_heads, head_dim), most

    @property
    def rows(self) -> int:
        return self.kv.shape[1]

    @property
    def slots(self) -> int:
        return self.kv.shape[2]

    def reserve(self, slots: int, *, spare: bool = True) -> None:
        """Make room for `slots` tokens in each row, and with `spare` for some more."""
        if slots <= self.slots:
            return
        more = min(max(slots + _ROOM, 2 * self.slots), max(slots, self.most)) if spare else slots
        layers, rows, held, *width = self.kv.shape
        grown = self.kv.new_zeros(layers, rows, more, *width)
        grown[:, :, :held] = self.kv
        self.kv = grown

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.kv = self.kv.index_select(1, torch.tensor(rows, device=self.kv.device))

    def widen(self, rows: int) -> None:
        """Grow the cache to that many rows."""
        layers, _, *shape = self.kv.shape
        grown = self.kv.new_zeros(layers, rows, *shape)
        grown[:, : self.rows] = self.kv
        self.kv = grown

    def copy_row(self, into: int, source: Cache, row: int, slots: int) -> None:
        """Copy the first `slots` tokens of a row of `source`, which may be this cache, into a row of this one."""
        self.kv[:, into, :slots].copy_(source.kv[:, row, :slots])

    def past_of(self, row: int) -> Tensor:
        """Give a row's keys and values in the shape of a `Past`: [layers, 2, kv heads, slots, head_dim]."""
        return self.kv[:, row].permute(0, 2, 3, 1, 4)


class ForwardPass(Protocol):
    """The forward pass of one model, over its own weights. `context` is the length of the longest text in tokens."""

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

    def cache(self, rows: int) -> Cache:
        """Make an empty cache for that many sequences."""
        ...

    def advance(
        self,
        ids_BT: Tensor,
        starts: Sequence[int],
        cache: Cache,
        lengths: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
    ) -> Tensor:
        """Give the [B, T, D] states of up to T further tokens a row; row i's tokens begin at position `starts[i]`.

        Tokens that the cache held for a row at these positions or later are dropped. In row i the first `lengths[i]`
        ids are tokens (None: all), and the states of its padding are zero. Row i of the ids is row `rows[i]` of the
        cache (None: row i).
        """
        ...

    def step(self, ids_R: Tensor, positions_R: Tensor, cache: Cache, end: int) -> Tensor:
        """Give the [R, D] states of one further token in each of the first R rows, whose positions are before `end`.

        All shapes depend on R and `end` alone and nothing is read back, so the step can be recorded as a CUDA graph.
        """
        ...


# A cache of fixed rows and slots, over which sequences are decoded in few shapes: they take a row and leave it, and a
# step computes all rows. On CUDA such a step is recorded once and replayed, since it is too short to be started kernel
# by kernel. On a CPU a row that nobody has costs as much as any other, so only work in bulk is done this way there.

FEWEST_ROWS, _FEWEST_SLOTS = 2, 256  # a product of one row is another kernel, which rounds otherwise


@dataclass(frozen=True, slots=True)
class _RecordedStep:
    graph: Any
    given_2R: Tensor
    result: Tensor


class StaticSteps:
    """Forward passes of one token for each of a cache's first rows. A call gives what `finish` makes of their states.

    With `records` (None: on CUDA) each shape is recorded as a CUDA graph at its first use. Where that fails, no step is
    recorded from then on, and each is computed kernel by kernel. `shapes` counts the steps by (rows, slots seen).
    """

    def __init__(
        self,
        forward: ForwardPass,
        cache: Cache,
        finish: Callable[[Tensor], Tensor] = lambda states_RD: states_RD,
        *,
        records: bool | None = None,
    ) -> None:
        self.forward, self.cache, self.finish = forward, cache, finish
        self.records = cache.kv.device.type == "cuda" if records is None else records
        self.shapes: Counter[tuple[int, int]] = Counter()
        self._recorded: dict[tuple[int, int], _RecordedStep] = {}
        self._kv = cache.kv
        self._pool: Any = None  # all graphs share the memory of what they compute in between

    def __call__(self, ids: Sequence[int], positions: Sequence[int], end: int) -> Tensor:
        """Feed one token to each of the first rows, at a position before `end`. Give `finish` of their states."""
        shape = len(ids), end
        self.shapes[shape] += 1
        given_2R = torch.tensor([ids, positions], dtype=torch.long, device="cpu")
        if self._kv is not self.cache.kv:  # what was recorded works on memory that the cache has left
            self._recorded, self._kv = {}, self.cache.kv
        if self.records and shape not in self._recorded:
            self._record(send(given_2R, self.cache.kv.device), end)
        if (recorded := self._recorded.get(shape)) is None:
            return self._compute(send(given_2R, self.cache.kv.device), end)
        recorded.given_2R.copy_(given_2R)
        recorded.graph.replay()
        return recorded.result.clone()

    def _compute(self, given_2R: Tensor, end: int) -> Tensor:
        return self.finish(self.forward.step(given_2R[0], given_2R[1], self.cache, end))

    def _record(self, given_2R: Tensor, end: int) -> None:
        """Record a step as a CUDA graph. It is first computed once, which writes into the cache what the step will."""
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._compute(given_2R, end)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads compute on the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = self._compute(given_2R, end)
        except RuntimeError as error:
            logger.warning("decoding goes on without recorded steps: %s", error)
            self.records = False
            return
        self._recorded[given_2R.shape[1], end] = _RecordedStep(graph, given_2R, result)


class RowPast:
    """The past of a sequence in one row of a cache that it shares with others. It has the interface of `Past`."""

    def __init__(self, rows: StaticRows, row: int) -> None:
        self.rows, self.row, self.tokens = rows, row, 0

    @property
    def kv(self) -> Tensor:
        return self.rows.cache.past_of(self.row)

    @property
    def slots(self) -> int:
        return self.rows.cache.slots

    def reserve(self, slots: int) -> None:
        """Make room for that many tokens, which are written next."""
        self.tokens = max(self.tokens, slots)
        self.rows.reserve(slots + 1)


class StaticRows:
    """A forward pass over one cache, whose rows are the pasts of sequences that are decoded together.

    It takes the place of a `ForwardPass` in decoding. The row of a past that is garbage-collected is free again.
    """

    def __init__(self, forward: ForwardPass, *, records: bool | None = None) -> None:
        self.forward, self.context = forward, forward.context
        self.embedding, self.logits = forward.embedding, forward.logits
        self.cache = forward.cache(FEWEST_ROWS)
        self.reserve(_FEWEST_SLOTS)
        self.steps = StaticSteps(forward, self.cache, records=records)
        self._free = list(range(FEWEST_ROWS))
        self._pasts: WeakValueDictionary[int, RowPast] = WeakValueDictionary()

    def past(self) -> RowPast:
        """Give the past of a new sequence, in the first free row. Without a free row the cache doubles its rows."""
        if not self._free:
            before = self.cache.rows
            self.cache.widen(2 * before)
            self._free.extend(range(before, 2 * before))
        past = RowPast(self, heappop(self._free))
        self._pasts[past.row] = past
        finalize(past, heappush, self._free, past.row)
        return past

    def reserve(self, slots: int) -> None:
        """Make room for `slots` tokens in every row."""
        if slots > self.cache.slots:
            self.cache.reserve(max(_FEWEST_SLOTS, 1 << (slots - 1).bit_length()), spare=False)

    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Give the [N, D] states of the tokens of all pieces, one after another; each sees its own past only."""
        for piece in pieces:
            piece.past.reserve(piece.start + len(piece.ids))
        states = {id(piece): part for piece, part in (*self._feed_single(pieces), *self._feed_longer(pieces))}
        return torch.cat([states[id(piece)] for piece in pieces])

    def _feed_single(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Tensor]]:
        """Feed the pieces of one token in one step. A row without one gets a token that its next one overwrites."""
        single = {piece.past.row: piece for piece in pieces if len(piece.ids) == 1}
        if not single:
            return
        count = max(FEWEST_ROWS, 1 << max(single).bit_length())
        ids = [single[row].ids[0] if row in single else 0 for row in range(count)]
        positions = [single[row].start if row in single else self._next_position(row) for row in range(count)]
        end = min(self.cache.slots, max(_FEWEST_SLOTS, 1 << max(positions).bit_length()))
        states_RD = self.steps(ids, positions, end)
        yield from ((piece, states_RD[row : row + 1]) for row, piece in single.items())

    def _next_position(self, row: int) -> int:
        past = self._pasts.get(row)
        return 0 if past is None else min(past.tokens, self.context - 1)

    def _feed_longer(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Tensor]]:
        longer = [piece for piece in pieces if len(piece.ids) > 1]
        if not longer:
            return
        ids_BT, _ = pad_sequences([piece.ids for piece in longer], 0)
        lengths = [len(piece.ids) for piece in longer]
        states_BTD = self.forward.advance(
            send(ids_BT, self.embedding.device),
            [piece.start for piece in longer], self.cache, lengths, [piece.past.row for piece in longer],
        )  # fmt: skip
        yield from ((piece, states_BTD[row, : len(piece.ids)]) for row, piece in enumerate(longer))
