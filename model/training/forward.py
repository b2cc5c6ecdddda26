"""The forward pass of training: sequences packed into rows, attention that keeps them apart, and adapters.

A GPU is idle between small kernels, and prepares anew for every new shape. So a forward is one row of one of a few
lengths, whatever sequences are in it, and an adapter costs its layer one product.
"""

from __future__ import annotations

import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import AttentionInterface

from colmlm.model.text.tokens import EncodedText

# Rows: sequences one after another, each with positions of its own.
#
# On a GPU a forward has a fixed size, so the number of shapes is small. On a CPU a shape costs nothing but unused
# tokens do, so rows are as long as their sequences.

GPU_TOKENS = 32_768  # of a forward on a GPU, where the configuration names no number
CPU_TOKENS = 2048  # of a forward on a CPU, at most, where the configuration names no number
SMALL = 4  # the last forward of a step may be this many times smaller
_UNUSED = 512  # the unused end of a row is cut into sequences of this length, whose attention costs little
_ENDS = 256  # the number of a row's sequences is rounded up to a multiple, by sequences without tokens


class Packing(NamedTuple):
    """The bounds of a row's sequences: `ends_N` has 0 and each sequence's end, in 32 bits, padded with the last end.

    `lengths` has their lengths on the host, where reading does not wait for the GPU. `longest` is an upper bound.
    """

    ends_N: Tensor
    lengths: tuple[int, ...]
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Packing:
        count = -(-(len(lengths) + 1) // _ENDS) * _ENDS
        ends_N = np.full(count, sum(lengths), dtype=np.int32)
        ends_N[: len(lengths) + 1] = [0, *np.cumsum(lengths)]
        return cls(
            torch.from_numpy(ends_N), tuple(lengths), max(_UNUSED, 1 << (max(lengths) - 1).bit_length())
        )


class Rows(NamedTuple):
    """The input of one forward: a row [1, T] of tokens, their positions in their sequences, and its `Packing`."""

    ids_RT: Tensor
    positions_RT: Tensor
    packing: Packing

    def to(self, device: torch.device) -> Rows:
        ends_N = self.packing.ends_N.to(device, non_blocking=True)
        ids_RT, positions_RT = (t.to(device, non_blocking=True) for t in (self.ids_RT, self.positions_RT))
        return Rows(ids_RT, positions_RT, self.packing._replace(ends_N=ends_N))

    def pin(self) -> Rows:
        """Give a copy in pinned memory, from which a GPU copies while it computes."""
        packing = self.packing._replace(ends_N=self.packing.ends_N.pin_memory())
        return Rows(self.ids_RT.pin_memory(), self.positions_RT.pin_memory(), packing)


def lay_out(
    sequences: Sequence[EncodedText], most_tokens: int, *, is_fixed: bool
) -> tuple[tuple[Rows, ...], list[int]]:
    """Lay out sequences as rows for successive forwards; give the rows and the position where each sequence begins.

    Positions are numbered consecutively over all rows. With `is_fixed` there is one row of `row_size` tokens. Otherwise
    rows hold at most `most_tokens`, more only where one sequence is longer, and end with their last sequence.
    """
    lengths = [len(sequence) for sequence in sequences]
    if is_fixed or not sequences:
        size = row_size(sum(lengths), most_tokens) if is_fixed else 1
        groups = [list(range(len(lengths)))]
    else:
        groups, size = rows_of(lengths, most_tokens), 0
    made, starts, reached = [], [0] * len(sequences), 0
    for group in groups:
        used = sum(lengths[i] for i in group)
        row = _row([sequences[i].ids for i in group], max(size, used))
        for i in group:
            starts[i] = reached
            reached += lengths[i]
        reached += row.ids_RT.numel() - used
        made.append(row)
    return tuple(made), starts


def row_size(tokens: int, most_tokens: int) -> int:
    """Give the size of a row for `tokens` tokens: `most_tokens` / `SMALL`, `most_tokens`, or a multiple of that."""
    small = -(-most_tokens // SMALL)
    return small if tokens <= small else max(1, -(-tokens // most_tokens)) * most_tokens


def rows_of(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Put sequences, by index, into rows of at most `most_tokens`: longest first, each into the first row with room.

    A longer sequence has a row of its own.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((row for row, left in enumerate(room) if left >= lengths[i]), None)
        if row is None:
            rows.append([i])
            room.append(most_tokens - lengths[i])
        else:
            rows[row].append(i)
            room[row] -= lengths[i]
    return rows


def _row(sequences: Sequence[Sequence[int]], size: int) -> Rows:
    lengths = [len(sequence) for sequence in sequences]
    unused = size - sum(lengths)
    lengths += [min(_UNUSED, unused - at) for at in range(0, unused, _UNUSED)]
    ids_T, starts_N = np.zeros(size, dtype=np.int64), np.cumsum([0, *lengths])
    ids_T[: size - unused] = np.fromiter(chain.from_iterable(sequences), np.int64, size - unused)
    positions_T = np.arange(size) - np.repeat(starts_N[:-1], lengths)
    return Rows(torch.from_numpy(ids_T)[None], torch.from_numpy(positions_T)[None], Packing.of(lengths))


# Attention over the sequences of a row, each by itself, as transformers calls it.
#
# `attend` is its interface for all layers: no mask is made. Torch has a kernel for it on GPUs. On a CPU, and where
# the kernel cannot compute (in float32, or with dropout), the sequences are read one after another.

PACKED = "colmlm_packed"  # the name of the interface in transformers
Kernel = Callable[[Tensor, Tensor, Tensor, Packing, float | None, int | None], Tensor]


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing: Packing | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention; without a `packing` each row is one sequence. The output is [B, T, heads, head_dim].

    The inputs are [B, heads, T, head_dim]. A token sees the last `sliding_window` tokens, itself included; None: all.
    """
    if packing is None:
        out = _causal(query, key, value, scaling, sliding_window, dropout)
    elif (kernel := _kernel(query, dropout)) is not None:
        out = kernel(query, key, value, packing, scaling, sliding_window)
    else:
        queries, keys, values = (t.split(packing.lengths, dim=2) for t in (query, key, value))
        parts = [
            _causal(query, key, value, scaling, sliding_window, dropout)
            for query, key, value in zip(queries, keys, values, strict=True)
        ]
        out = torch.cat(parts, dim=2)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(PACKED, attend)


def compile_layers(causal: Any) -> None:
    """Compile each layer of a model without its attention, since the sequences' lengths change at every step."""
    AttentionInterface.register(PACKED, torch.compiler.disable(attend))
    for layer in causal.model.layers:
        layer.compile(dynamic=False)


def varlen_kernel() -> Kernel | None:
    """Give torch's kernel for packed sequences on GPUs; None if this version of torch has none.

    It takes [1, heads, T, head_dim]. Where torch needs as many heads of keys as of queries, keys are repeated.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    if "window_size" not in known or "scale" not in known:
        return None

    def attend_packed(
        query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None, window: int | None
    ) -> Tensor:
        group = query.shape[1] // key.shape[1]
        options: dict[str, Any] = {"scale": scaling, "window_size": (-1 if window is None else window - 1, 0)}
        if "enable_gqa" in known:
            options["enable_gqa"] = group > 1
        elif group > 1:
            key, value = (t.repeat_interleave(group, dim=1) for t in (key, value))
        rows = (t[0].transpose(0, 1) for t in (query, key, value))
        ends_N, longest = packing.ends_N, packing.longest
        out = cast(Tensor, varlen_attn(*rows, ends_N, ends_N, longest, longest, **options))
        return out.transpose(0, 1)[None]

    return attend_packed


_VARLEN = varlen_kernel()


def _kernel(query: Tensor, dropout: float) -> Kernel | None:
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    is_there = (query.is_cuda and is_half) or query.is_meta
    return _VARLEN if is_there and not dropout and len(query) == 1 else None


def _causal(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, dropout: float
) -> Tensor:
    """Compute causal attention in which each row is one sequence: [B, heads, T, head_dim]."""
    width, mask = query.shape[2], None
    if window is not None and window < width:
        mask = torch.ones(width, width, dtype=torch.bool, device=query.device).tril().triu(1 - window)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip


# Adapters: peft's layers, which name, save and load their weights, with a forward pass of our own.
#
# Once a step the products of all adapters are added to the weights under them, in one call for all layers of a shape.
# A layer is then one product, and its gradient is that of the small matrices, not of the weight. Rows of added tokens
# cost peft a copy of the vocabulary at each forward, and a gradient of all its rows. Here they cost their own rows.


class MergedLinear(LoraLinear):  # type: ignore[misc]  # peft has no types
    """A linear layer under an adapter. `parts` are arguments of `_MergedProduct`; None: it is computed as in peft."""

    parts: tuple[Any, ...] | None = None

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.parts is None:
            return cast(Tensor, super().forward(x, *args, **kwargs))
        return cast(Tensor, _MergedProduct.apply(x, *self.parts))

    def merge_into(self, merged_OI: Tensor) -> None:
        """Use `merged_OI`, the weight with the adapter added to it, in every forward from now on."""
        self.parts = (merged_OI, self.base_layer.bias, *self.small)

    @property
    def small(self) -> tuple[nn.Parameter, nn.Parameter, float]:
        """Give the adapter's two small matrices, A and B, and the factor of their product."""
        (name,) = self.active_adapters
        return self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]


class _MergedProduct(torch.autograd.Function):
    """The product of x and a merged weight, with the gradient of the adapter's matrices as if they were not merged."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        merged_OI: Tensor,
        bias: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(x, merged_OI, down_RI, up_OR)
        ctx.scale = scale
        return F.linear(x.to(merged_OI.dtype), merged_OI, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, merged_OI, down_RI, up_OR = ctx.saved_tensors
        kind = merged_OI.dtype
        grad_NO, x_NI = grads[0].flatten(0, -2).to(kind), x.flatten(0, -2).to(kind)
        down, up = down_RI.to(kind), up_OR.to(kind)
        grad_x = (grad_NO @ merged_OI).view(x.shape).to(x.dtype) if ctx.needs_input_grad[0] else None
        grad_down = (grad_NO @ up).T @ x_NI * ctx.scale
        grad_up = grad_NO.T @ (x_NI @ down.T) * ctx.scale
        return grad_x, None, None, grad_down.to(down_RI.dtype), grad_up.to(up_OR.dtype), None


class TokenRows(TrainableTokensLayer):  # type: ignore[misc]  # peft has no types
    """The embeddings, or the head, with trained rows for some tokens and frozen rows for all others."""

    is_fast = False

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not self.is_fast:
            return cast(Tensor, super().forward(x, *args, **kwargs))
        weight_VD, rows_KD = self.base_layer.weight, self.trainable_tokens_delta[self.active_adapters[0]]
        if isinstance(self.base_layer, nn.Linear):
            return cast(Tensor, _HeadProduct.apply(x, weight_VD, rows_KD, self.added_K))
        slots_BT = self.slots_V[x]
        added = F.embedding(slots_BT.clamp(min=0), rows_KD).to(weight_VD.dtype)
        return torch.where((slots_BT >= 0)[..., None], added, F.embedding(x, weight_VD))

    def build_tables(self) -> None:
        """Build the tables of trained tokens on the weights' device, and use the fast forward from now on."""
        weight_VD, added = self.base_layer.weight, self.token_indices[self.active_adapters[0]]
        self.added_K = torch.tensor(added, device=weight_VD.device)
        self.slots_V = torch.full((len(weight_VD),), -1, device=weight_VD.device)
        self.slots_V[self.added_K] = torch.arange(len(added), device=weight_VD.device)
        self.is_fast = True


class _HeadProduct(torch.autograd.Function):
    """Logits whose gradient reaches the states and the rows of added tokens, not those of all others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_VD: Tensor, rows_KD: Tensor, added_K: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight_VD, rows_KD, added_K)
        logits = F.linear(x.to(weight_VD.dtype), weight_VD)
        return logits.index_copy_(-1, added_K, F.linear(x.to(weight_VD.dtype), rows_KD.to(weight_VD.dtype)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight_VD, rows_KD, added_K = ctx.saved_tensors
        kind = weight_VD.dtype
        grad_NV, x_ND = grads[0].flatten(0, -2).to(kind), x.flatten(0, -2).to(kind)
        grad_NK, rows = grad_NV.index_select(-1, added_K), rows_KD.to(kind)
        grad_x = grad_NV @ weight_VD + grad_NK @ (rows - weight_VD.index_select(0, added_K))
        return grad_x.view(x.shape).to(x.dtype), None, (grad_NK.T @ x_ND).to(rows_KD.dtype), None


@dataclass(slots=True)
class _Group:
    """Layers of one shape: their weights, and these weights with the adapters merged in, each stacked in a tensor."""

    down_RI: tuple[nn.Parameter, ...]
    up_OR: tuple[nn.Parameter, ...]
    scales: tuple[float, ...]  # all the same
    weights_LOI: Tensor
    merged_LOI: Tensor

    def merge(self) -> None:
        product_LOI = torch.bmm(torch.stack(self.up_OR), torch.stack(self.down_RI))
        torch.add(self.weights_LOI, product_LOI, alpha=self.scales[0], out=self.merged_LOI)


class MergedAdapters:
    """The adapters of a model, if it has any; each forward first merges them if a step has changed them.

    Sharded weights (FSDP) are computed as peft does, since no process has a whole one.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers: list[MergedLinear] = []
        self.groups: list[_Group] | None = None
        self._tokens: list[TokenRows] = []
        self.versions: list[int] = []
        if not isinstance(model, PeftModel):
            return
        model.get_base_model().model.register_forward_pre_hook(lambda *_: self.refresh())
        reference = weakref.ref(self)  # a fused optimiser leaves no trace in `_version`
        hook = register_optimizer_step_post_hook(lambda *_: _mark_outdated(reference()))
        weakref.finalize(self, hook.remove)
        for layer in model.modules():
            if type(layer) is LoraLinear:
                layer.__class__ = MergedLinear
                self.layers.append(layer)
            elif type(layer) is TrainableTokensLayer and _is_plain(layer.base_layer):
                layer.__class__ = TokenRows
                self._tokens.append(layer)

    @torch.inference_mode(False)
    @torch.no_grad()
    def refresh(self) -> None:
        """Merge the adapters into copies of their weights if their matrices have changed since the last merge."""
        if not self.layers or isinstance(self.layers[0].small[0], DTensor):
            return
        if self.groups is None:
            self.groups = list(self._group_layers())
            for token_rows in self._tokens:
                token_rows.build_tables()
        versions = [small._version for group in self.groups for small in (*group.down_RI, *group.up_OR)]
        if versions != self.versions:
            for group in self.groups:
                group.merge()
            self.versions = versions

    def _group_layers(self) -> Iterator[_Group]:
        alike: dict[tuple[Any, ...], list[MergedLinear]] = defaultdict(list)
        for layer in self.layers:
            weight_OI = layer.base_layer.weight
            alike[weight_OI.shape, weight_OI.dtype, layer.small[0].shape, layer.small[2]].append(layer)
        for layers in alike.values():
            weights_LOI = torch.stack([layer.base_layer.weight for layer in layers])
            merged_LOI = torch.empty_like(weights_LOI)
            for layer, weight_OI, merged_OI in zip(layers, weights_LOI, merged_LOI, strict=True):
                layer.base_layer.weight.data = weight_OI  # nothing is held twice
                layer.merge_into(merged_OI)
            down_RI, up_OR, scales = zip(*(layer.small for layer in layers), strict=True)
            yield _Group(down_RI, up_OR, scales, weights_LOI, merged_LOI)


def _mark_outdated(adapters: MergedAdapters | None) -> None:
    """Have the next forward merge the adapters, since an optimiser has made a step."""
    if adapters is not None:
        adapters.versions = []


def _is_plain(layer: nn.Module) -> bool:
    is_head = type(layer) is nn.Linear and layer.bias is None
    return is_head or (type(layer) is nn.Embedding and layer.max_norm is None)
