"""The language model that is also a retriever: one forward gives logits and unit-norm queries.

A query is the hidden state after the final norm at ``<FACT>`` (or ``<FACT-q>``), L2-normalised (section 3.1).
Vocabulary rows for the three added tokens come last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from colmlm.model.lm.config import CheckpointError
from colmlm.model.lm.llama import Llama
from colmlm.model.lm.past import Cache, ForwardPass, Past, Piece, StaticRows, block_end
from colmlm.model.text.tokens import EncodedText, length_batches, send


class FactLM(nn.Module):
    """A causal LM of a known family, plain or under a LoRA adapter, that gives logits and hidden states."""

    def __init__(self, model: nn.Module, *, compute: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute = compute
        self._inference: ForwardPass | None = None
        self._idle_rows: list[StaticRows] = []

    @property
    def causal(self) -> PreTrainedModel:
        """Give the model itself, with the adapter's layers in place if there is one."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def dim(self) -> int:
        return int(self.causal.config.hidden_size)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def inference(self) -> ForwardPass:
        """Give the forward pass for inference over these weights. Raises `TypeError` under an adapter."""
        if self.causal is not self.model:
            raise TypeError(f"{type(self.model).__name__} is no plain model: merge the adapter first")
        if self._inference is None or not self._inference.is_of(self.causal):
            made = Llama if is_fast(self.causal.config) else TransformersPass
            self._inference, self._idle_rows = made(self.causal), []
        return self._inference

    def static_rows(self, user: object) -> StaticRows:
        """Give a `StaticRows` that only `user` uses. Once `user` is garbage-collected, another user may get it."""
        forward = self.inference
        rows = self._idle_rows.pop() if self._idle_rows else StaticRows(forward)
        finalize(user, self._idle_rows.append, rows)
        return rows

    def hidden(self, ids_BT: Tensor, positions_BT: Tensor | None = None, packing: Any = None) -> Tensor:
        """Give the [B, T, D] states after the final norm. Right padding needs no mask: attention is causal.

        Where `positions_BT` restart within a row, a new sequence begins there that does not see the one before. A
        trainer's attention takes the sequences of the row from `packing` (`model.training.forward`).
        """
        is_plain = positions_BT is None and torch.is_inference_mode_enabled() and self._is_for_inference
        if is_plain and ids_BT.shape[1] <= self.inference.context:
            return self.inference.states(ids_BT)
        with self._autocast():
            packed = {} if packing is None else {"packing": packing}
            return self.causal.model(
                input_ids=ids_BT, position_ids=positions_BT, use_cache=False, **packed
            ).last_hidden_state

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Give the [N, V] next-token logits, in float32."""
        with self._autocast():
            return self.causal.lm_head(hidden_ND).float()

    def states_at(
        self,
        sequences: Sequence[EncodedText],
        positions: Sequence[Sequence[int]],
        *,
        max_tokens: int | None = None,
    ) -> Tensor:
        """Give the [M, D] states at these positions of each sequence, one sequence after another.

        Sequences of similar length are padded and run together (see `length_batches`). Nothing is read back from the
        device.
        """
        device, ids = self.device, [sequence.ids for sequence in sequences]
        longest = int(self.causal.config.max_position_embeddings)
        kept, order = [torch.empty(0, self.dim, device=device)], list[int]()
        first = list(accumulate(map(len, positions), initial=0))
        for batch in length_batches(
            list(map(len, ids)), device=device, max_tokens=max_tokens, longest=longest
        ):
            hidden_BTD = self.hidden(batch.pad(ids, 0, device))
            at = [row * batch.width + p for row, n in enumerate(batch.numbers) for p in positions[n]]
            order += [first[n] + k for n in batch.numbers for k in range(len(positions[n]))]
            kept.append(hidden_BTD.flatten(0, 1)[send(torch.tensor(at, dtype=torch.long), device)])
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        return torch.cat(kept[1:] or kept)[send(torch.from_numpy(places), device)]

    def _autocast(self) -> AbstractContextManager[Any]:
        """Give the autocast context for bf16 if `compute` is bf16, else a context that does nothing."""
        if self.compute is not torch.bfloat16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @property
    def _is_for_inference(self) -> bool:
        """Tell whether these weights are frozen and used in their own precision, without an adapter."""
        return (
            self.causal is self.model
            and self.compute is torch.float32
            and not self.causal.lm_head.weight.requires_grad
        )


def unit(states_ND: Tensor) -> Tensor:
    """L2-normalise rows in float32: the form of keys and queries."""
    return F.normalize(states_ND.float(), dim=-1)


# The forward pass of any family for inference, by transformers' own code: plain, and slower than
# `model.lm.llama`.
#
# Transformers is handed a past in the place of its cache: it puts a block's keys and values where they
# belong, and sees all that stand before them. So tokens are taken back as they are everywhere, also where a
# layer sees a window only: the past keeps what the window has left, and a mask hides it. Each sequence is
# read alone, in blocks that end at fixed positions, so what a text becomes does not depend on what is decoded
# beside it.


class _PastOfBlock:
    """A past with the interface of transformers' cache, for the forward pass of a block that begins at `start`."""

    def __init__(self, past: Past, start: int) -> None:
        self.past, self.start = past, start

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.start

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the block's [1, kv heads, T, head_dim] keys and values; give those of all tokens up to its end."""
        kept, end = self.past.kv[layer], self.start + keys.shape[2]
        kept[0, :, self.start : end], kept[1, :, self.start : end] = keys[0], values[0]
        return kept[0, None, :, :end], kept[1, None, :, :end]


class _RowsOfCache:
    """Rows of a `Cache` with the interface of transformers' cache, for tokens at positions [B, T].

    They are the rows `rows_B`, or the first B where that is None; each sees slots before `end`.
    """

    def __init__(self, cache: Cache, rows_B: Tensor | None, positions_BT: Tensor, end: int) -> None:
        self.cache, self.rows_B, self.positions_BT, self.end = cache, rows_B, positions_BT, end
        count = len(positions_BT)
        self.places_B1 = (torch.arange(count, device=positions_BT.device) if rows_B is None else rows_B)[
            :, None
        ]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.end - self.positions_BT.shape[1]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the tokens' [B, kv heads, T, head_dim] keys and values; give those of all slots before `end`."""
        held = self.cache.kv[layer]
        held[self.places_B1, self.positions_BT] = torch.stack([keys, values]).permute(1, 3, 0, 2, 4)
        seen = held[:, : self.end]
        seen = seen[: len(keys)] if self.rows_B is None else seen.index_select(0, self.rows_B)
        return seen[:, :, 0].transpose(1, 2), seen[:, :, 1].transpose(1, 2)


class TransformersPass:
    """The `ForwardPass` of a model of any family (no adapter layers), by transformers' own code."""

    def __init__(self, causal: Any) -> None:
        self.causal = causal
        self.context = int(causal.config.max_position_embeddings)
        layers = getattr(causal.config, "layer_types", None) or ()
        window = causal.config.sliding_window if SLIDING in layers else None
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
        return Past(self.embedding, *self._shape)

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Give the numbers of layers and of key heads, and the width of a head."""
        config, attention = self.causal.config, self.causal.model.layers[0].self_attn
        return config.num_hidden_layers, config.num_key_value_heads, attention.head_dim

    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        return torch.cat([states for piece in pieces for states in self._blocks(piece)])

    def cache(self, rows: int) -> Cache:
        layers, heads, width = self._shape
        return Cache(self.embedding, layers, rows, heads, width, self.context)

    def advance(
        self,
        ids_BT: Tensor,
        starts: Sequence[int],
        cache: Cache,
        lengths: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
    ) -> Tensor:
        width, device = ids_BT.shape[1], self.embedding.device
        end = max(starts) + width
        cache.reserve(end)
        columns_T = torch.arange(width, device=device)
        positions_BT = torch.tensor(starts, device=device)[:, None] + columns_T
        rows_B = None if rows is None else torch.tensor(rows, device=device)
        states_BTD = self._read_rows(ids_BT.to(device), positions_BT, cache, rows_B, end)
        if lengths is None:
            return states_BTD
        is_token_BT = columns_T < torch.tensor(lengths, device=device)[:, None]
        return states_BTD.masked_fill(~is_token_BT[..., None], 0.0)

    def step(self, ids_R: Tensor, positions_R: Tensor, cache: Cache, end: int) -> Tensor:
        return self._read_rows(ids_R[:, None], positions_R[:, None], cache, None, end)[:, 0]

    def _read_rows(
        self, ids_BT: Tensor, positions_BT: Tensor, cache: Cache, rows_B: Tensor | None, end: int
    ) -> Tensor:
        states: Tensor = self.causal.model(
            input_ids=ids_BT,
            position_ids=positions_BT,
            attention_mask={
                kind: self._mask(positions_BT, end, window)[:, None] for kind, window in self.windows.items()
            },
            past_key_values=_RowsOfCache(cache, rows_B, positions_BT, end),
            use_cache=True,
        ).last_hidden_state
        return states

    def _blocks(self, piece: Piece) -> Iterator[Tensor]:
        """Yield the [T, D] states of a piece, block by block."""
        at, end = piece.start, piece.start + len(piece.ids)
        piece.past.reserve(end)
        while at < end:
            until = min(end, block_end(at))
            yield self._block(piece.ids[at - piece.start : until - piece.start], at, piece.past)
            at = until

    def _block(self, ids: Sequence[int], start: int, past: Past) -> Tensor:
        end = start + len(ids)
        positions_1T = torch.arange(start, end, device=self.embedding.device)[None]
        states: Tensor = self.causal.model(
            input_ids=torch.tensor([ids], device=self.embedding.device),
            position_ids=positions_1T,
            attention_mask={
                kind: None
                if len(ids) == 1 and (window is None or end <= window)  # it may see all that there is
                else self._mask(positions_1T, end, window)[None]
                for kind, window in self.windows.items()
            },
            past_key_values=_PastOfBlock(past, start),
            use_cache=True,
        ).last_hidden_state
        return states[0]

    def _mask(self, positions_BT: Tensor, end: int, window: int | None) -> Tensor:
        """Make the [B, T, S] mask that hides the slots after each token, and those before its attention window."""
        slots_S, own_BT1 = torch.arange(end, device=positions_BT.device), positions_BT[..., None]
        hidden_BTS = slots_S > own_BT1
        if window is not None:
            hidden_BTS |= slots_S <= own_BT1 - window
        mask = torch.zeros(hidden_BTS.shape, dtype=self.embedding.dtype, device=positions_BT.device)
        return mask.masked_fill_(hidden_BTS, float("-inf"))


# The families of models that can be trained, keyed and decoded with, by the `model_type` of their config.
#
# A model is made by the class that stands here and by no other, so no code that comes with weights is ever
# run.

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Family:
    """A family by the name people know it by, and the name of its class in transformers.

    `is_fast` says that `model.lm.llama` computes its forward pass where no layer has a window; any other is left to
    transformers' own.
    """

    name: str
    model: str
    is_fast: bool


FAMILIES = {
    "llama": Family("Llama, SmolLM2", "LlamaForCausalLM", True),
    "qwen2": Family("Qwen 2.5", "Qwen2ForCausalLM", True),
    "qwen3": Family("Qwen 3", "Qwen3ForCausalLM", True),
    "smollm3": Family("SmolLM3", "SmolLM3ForCausalLM", True),
    "gemma3_text": Family("Gemma 3, text", "Gemma3ForCausalLM", False),
}
_WITH_PICTURES = {"gemma3": "take the 270m or the 1b, or save its language model by itself"}
# What would change the numbers, and no model of these families has as it is published.
_UNKNOWN = (
    "attn_logit_softcapping", "final_logit_softcapping", "quantization_config", "use_bidirectional_attention",
)  # fmt: skip


def config_at(directory: Path) -> Any:
    """Read the config of the model in a directory. Raises `CheckpointError` if it is of none of `FAMILIES`."""
    try:
        kind = json.loads((directory / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{directory / 'config.json'} cannot be read ({error})") from error
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(f"{type} ({family.name})" for type, family in FAMILIES.items())
        remedy = _WITH_PICTURES.get(str(kind), "take a base or a checkpoint of one of these")
        raise CheckpointError(
            f"{directory} is a model of type {kind!r}; what is known here is {known}: {remedy}"
        )
    config = _class_of(kind).config_class.from_pretrained(directory, local_files_only=True)
    if found := [name for name in _UNKNOWN if getattr(config, name, None)]:
        raise CheckpointError(
            f"{directory}: its config.json has {found[0]}, with which nothing here computes; take a model without it"
        )
    return config


def model_at(directory: Path, dtype: torch.dtype) -> Any:
    """Load the weights of a directory as `dtype`. Raises `CheckpointError` if any is missing."""
    config = config_at(directory)
    transformers_logging.disable_progress_bar()
    try:
        model, loaded = _class_of(config.model_type).from_pretrained(
            directory, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: the weights cannot be read ({error})") from error
    if missing := sorted(loaded["missing_keys"]):
        raise CheckpointError(f"{directory}: {len(missing)} weights are missing, {missing[0]} for one")
    return model


def model_of(config: Any) -> Any:
    """Make a model of this config, with random weights."""
    return _class_of(config.model_type)(config)


def family_of(config: Any) -> Family:
    """Give the family of a model with this config."""
    return FAMILIES[config.model_type]


def is_fast(config: Any) -> bool:
    """Tell whether `model.lm.llama` computes the forward pass of a model with this config."""
    layers = getattr(config, "layer_types", None) or ()
    family = FAMILIES.get(config.model_type)
    return family is not None and family.is_fast and SLIDING not in layers


def _class_of(kind: str) -> Any:
    return getattr(transformers, FAMILIES[kind].model)
