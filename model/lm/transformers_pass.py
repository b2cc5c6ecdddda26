"""The forward pass of any family for inference, by transformers' own code: plain, and slower than `model.lm.llama`.

Transformers is handed a past in the place of its cache: it puts a block's keys and values where they belong, and sees
all that stand before them. So tokens are taken back as they are everywhere, also where a layer sees a window only: the
past keeps what the window has left, and a mask hides it. Each sequence is read alone, in blocks that end at fixed
positions, so what a text becomes does not depend on what is decoded beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from colmlm.model.lm.families import FULL, SLIDING
from colmlm.model.lm.past import Past, Piece, block_end


class _PastOfBlock:
    """A past as transformers takes it for a cache, while it reads a block that begins at `start`."""

    def __init__(self, past: Past, start: int) -> None:
        self.past, self.start = past, start

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.start

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keeps the block's [1, kv heads, T, head_dim] keys and values; gives those of all tokens up to its end."""
        kept, end = self.past.kv[layer], self.start + keys.shape[2]
        kept[0, :, self.start : end], kept[1, :, self.start : end] = keys[0], values[0]
        return kept[0, None, :, :end], kept[1, None, :, :end]


class Pasts:
    """The pasts of several sequences."""

    def __init__(self, pasts: Sequence[Past]) -> None:
        self.pasts = list(pasts)

    def reserve(self, slots: int) -> None:
        for past in self.pasts:
            past.reserve(slots)

    def keep(self, rows: Sequence[int]) -> None:
        self.pasts = [self.pasts[row] for row in rows]


class TransformersPass:
    """The forward pass of a model of any family (no adapter layers), as `model.lm.forward_pass` describes it."""

    def __init__(self, causal: Any) -> None:
        self.causal = causal
        self.context = int(causal.config.max_position_embeddings)
        window = causal.config.sliding_window if SLIDING in causal.config.layer_types else None
        self.windows: dict[str, int | None] = {FULL: None, SLIDING: window}

    @property
    def embedding(self) -> Tensor:
        weight: Tensor = self.causal.get_input_embeddings().weight
        return weight

    def is_of(self, causal: Any) -> bool:
        return causal is self.causal

    def states(self, ids_BT: Tensor) -> Tensor:
        ids_BT = ids_BT.to(self.embedding.device)
        states: Tensor = self.causal.model(input_ids=ids_BT, use_cache=False).last_hidden_state
        return states

    def logits(self, states_ND: Tensor) -> Tensor:
        logits_NV: Tensor = self.causal.lm_head(states_ND)
        return logits_NV if logits_NV.dtype is torch.float64 else logits_NV.float()

    def past(self) -> Past:
        config, attention = self.causal.config, self.causal.model.layers[0].self_attn
        return Past(self.embedding, config.num_hidden_layers, config.num_key_value_heads, attention.head_dim)

    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        return torch.cat([states for piece in pieces for states in self._blocks(piece)])

    def cache(self, rows: int) -> Pasts:
        return Pasts([self.past() for _ in range(rows)])

    def advance(
        self, ids_BT: Tensor, starts: Sequence[int], cache: Pasts, lengths: Sequence[int] | None = None
    ) -> Tensor:
        rows, width = ids_BT.shape
        counts = [width] * rows if lengths is None else lengths
        states_BTD = self.embedding.new_zeros(rows, width, self.embedding.shape[1])
        for row, (ids_T, start, count) in enumerate(zip(ids_BT.tolist(), starts, counts, strict=True)):
            if count:
                states_BTD[row, :count] = self.feed([Piece(ids_T[:count], start, cache.pasts[row])])
        return states_BTD

    def _blocks(self, piece: Piece) -> Iterator[Tensor]:
        """Yields the [T, D] states of a piece, block by block."""
        at, end = piece.start, piece.start + len(piece.ids)
        piece.past.reserve(end)
        while at < end:
            until = min(end, block_end(at))
            yield self._block(piece.ids[at - piece.start : until - piece.start], at, piece.past)
            at = until

    def _block(self, ids: Sequence[int], start: int, past: Past) -> Tensor:
        positions_T = torch.arange(start, start + len(ids), device=self.embedding.device)
        states: Tensor = self.causal.model(
            input_ids=torch.tensor([ids], device=self.embedding.device),
            position_ids=positions_T[None],
            attention_mask={kind: self._mask(positions_T, window) for kind, window in self.windows.items()},
            past_key_values=_PastOfBlock(past, start),
            use_cache=True,
        ).last_hidden_state
        return states[0]

    def _mask(self, positions_T: Tensor, window: int | None) -> Tensor | None:
        """Hides what comes after a token, and what has left its window; a single token may see all that there is."""
        end = int(positions_T[-1]) + 1
        if len(positions_T) == 1 and (window is None or end <= window):
            return None
        slots_S, own_T1 = torch.arange(end, device=positions_T.device), positions_T[:, None]
        hidden_TS = slots_S > own_T1
        if window is not None:
            hidden_TS |= slots_S <= own_T1 - window
        mask = torch.zeros(hidden_TS.shape, dtype=self.embedding.dtype, device=positions_T.device)
        return mask.masked_fill_(hidden_TS, float("-inf"))[None, None]
