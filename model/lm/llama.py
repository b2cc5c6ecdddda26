"""The forward pass of a Llama and its kin for inference: the same numbers as transformers at a lower cost.

The kin are the families that differ in little (`model.lm.language_model`): Qwen 2.5 adds to q, k and v, Qwen 3
normalises each head of q and k, and SmolLM3 has layers that rotate nothing. None of their layers may have a window.

Design:
- q, k and v are one matrix product, and so are gate and up. On a CPU oneDNN reorders the weights for its kernels
  once instead of at every call, which saves a third of the time per token and costs a second copy of the weights.
  That copy lies in huge pages: a step reads all of it, and waits for memory more than it computes.
  On other devices the model's own weights become views of the joined ones, so nothing is held twice.
- Token t of a sequence is stored in slot t of its row of the cache, and a token attends to the slots up to its own.
  So tokens are taken back by feeding others at their positions, and the padding of a shorter row is overwritten
  before any token attends to it. Neither needs a mask of its own.
- Rows of different lengths are multiplied together without the padding of the shorter ones; only attention pads.
- Masks and rotations are made once a forward, not once a layer; logits only where they are asked for.

Every operation rounds where transformers rounds, so that bf16 agrees as well.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel

from colmlm.model.lm.past import BlocksOfStep, Cache, Past, Piece

Attend = Callable[
    [int, Tensor], Tensor
]  # from the number of a layer and its q, k and v to what is attended to


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer. `qkv` outputs the heads of q, then k, then v; `gate_up` outputs the gate first.

    `head_norms` are the weights by which each head of q, and each of k, is normalised, where the family does that.
    """

    norm_D: Tensor
    qkv: Linear
    head_norms: tuple[Tensor, Tensor] | None
    is_rotated: bool
    out: Linear
    mlp_norm_D: Tensor
    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.qkv, self.out, self.gate_up, self.down


class Llama:
    """The forward pass of a plain Llama or one of its kin (no adapter layers) over its own weights."""

    def __init__(self, causal: PreTrainedModel) -> None:
        config, model = causal.config, causal.model
        attention = model.layers[0].self_attn
        self.head_dim = int(attention.head_dim)
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.rotated = (self.heads + self.kv_heads) * self.head_dim
        self.q_width, self.kv_width = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        self.scale, self.eps = float(attention.scaling), float(config.rms_norm_eps)
        self.context = _steady_length(config)
        self.activation = model.layers[0].mlp.act_fn
        self.embedding, self.norm_D = model.embed_tokens.weight, model.norm.weight
        with torch.inference_mode(False):  # they become the model's own, and may be trained or cast later
            self.layers = [_layer(layer) for layer in model.layers]
            self.head = Linear(causal.lm_head)
            self.cos_SD, self.sin_SD = _rotations(causal, self.context)

    def is_of(self, causal: PreTrainedModel) -> bool:
        """Tell whether `causal` still computes with these weights, which were not changed, moved or cast since."""
        return causal.lm_head.weight is self.head.sources[0] and all(
            linear.is_current()
            for linear in (self.head, *(each for layer in self.layers for each in layer.linears))
        )

    def states(self, ids_BT: Tensor) -> Tensor:
        """Give the [B, T, D] states after the final norm. Right padding needs no mask: attention is causal."""
        width = ids_BT.shape[1]
        return self._forward(ids_BT, self.cos_SD[:width], self.sin_SD[:width])

    def cache(self, rows: int) -> Cache:
        """Make an empty cache for that many sequences."""
        return Cache(self.embedding, len(self.layers), rows, self.kv_heads, self.head_dim, self.context)

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
        count, width = ids_BT.shape
        end = max(starts) + width
        cache.reserve(end)
        device = self.embedding.device
        first_B1 = torch.tensor(starts, device=device)[:, None]
        positions_BT = first_B1 + torch.arange(width, device=device)
        rows_B = torch.arange(count, device=device) if rows is None else torch.tensor(rows, device=device)
        slots_N = (rows_B[:, None] * cache.slots + positions_BT).flatten()
        mask = self._mask(positions_BT, end) if width > 1 or min(starts) < max(starts) else None
        cos, sin = (table[positions_BT.clamp(max=self.context - 1)] for table in (self.cos_SD, self.sin_SD))
        tokens_N = None
        if lengths is not None and sum(lengths) < count * width:
            at = (range(row * width, row * width + length) for row, length in enumerate(lengths))
            tokens_N = torch.tensor(list(chain.from_iterable(at)), device=device)
        if not any(starts):
            mask, end = None, 0
        return self._forward(
            ids_BT, cos, sin, mask=mask, cache=cache, slots_N=slots_N, end=end, tokens_N=tokens_N,
            rows_B=None if rows is None else rows_B,
        )  # fmt: skip

    def step(self, ids_R: Tensor, positions_R: Tensor, cache: Cache, end: int) -> Tensor:
        """Give the [R, D] states of one further token in each of the first R rows, whose positions are before `end`.

        All shapes depend on R and `end` alone and nothing is read back, so the step can be recorded as a CUDA graph.
        """
        count = len(ids_R)
        slots_R = torch.arange(count, device=ids_R.device) * cache.slots + positions_R
        mask = self._mask(positions_R[:, None], end)

        def attend(number: int, qkv_RW: Tensor) -> Tensor:
            kv = cache.kv[number].flatten(2)
            kv.view(-1, self.kv_width).index_copy_(0, slots_R, qkv_RW[:, self.q_width :])
            return self._attend(qkv_RW[:, None, : self.q_width], kv[:count, :end], mask)[:, 0]

        x = F.embedding(ids_R, self.embedding)
        return self._through_layers(x, self.cos_SD[positions_R], self.sin_SD[positions_R], attend)

    def past(self) -> Past:
        """Make the empty past of a sequence that is decoded together with others."""
        return Past(self.embedding, len(self.layers), self.kv_heads, self.head_dim)

    def feed(self, pieces: Sequence[Piece]) -> Tensor:
        """Give the [N, D] states of the tokens of all pieces, one after another; each sees its own past only.

        A piece's states are the same to the last bit whatever the others are (fp32).
        """
        device, ids = self.embedding.device, [token for piece in pieces for token in piece.ids]
        positions = [piece.start + n for piece in pieces for n in range(len(piece.ids))]
        blocks = BlocksOfStep(pieces, self.heads // self.kv_heads, self.scale)

        def attend(number: int, qkv_NW: Tensor) -> Tensor:
            q = qkv_NW[: len(ids), : self.q_width].view(len(ids), self.kv_heads, -1, self.head_dim)
            kv = qkv_NW[: len(ids), self.q_width :].view(len(ids), 2, self.kv_heads, self.head_dim)
            return blocks.attend(number, q, kv).expand(len(qkv_NW), -1)

        at_N = torch.tensor(_at_least_two(positions), device=device)
        x = F.embedding(torch.tensor(_at_least_two(ids), device=device), self.embedding)
        return self._through_layers(x, self.cos_SD[at_N], self.sin_SD[at_N], attend)[: len(ids)]

    def logits(self, states_ND: Tensor) -> Tensor:
        """Give the [N, V] next-token logits, in float32 (float64 if the model is in float64)."""
        alone = len(states_ND) == 1  # multiplied as two, so that the last bits are those it has among others
        logits_NV = self.head(states_ND.expand(2, -1))[:1] if alone else self.head(states_ND)
        return logits_NV if logits_NV.dtype is torch.float64 else logits_NV.float()

    def _forward(
        self,
        ids_BT: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        slots_N: Tensor | None = None,
        end: int = 0,
        tokens_N: Tensor | None = None,
        rows_B: Tensor | None = None,
    ) -> Tensor:
        """Give the [B, T, D] states of the ids after the final norm.

        With `tokens_N`, the indices of tokens in B * T, activations are [N, ...] outside of attention. With `rows_B`
        the ids belong to these rows of the cache.
        """
        x = F.embedding(ids_BT.to(self.embedding.device), self.embedding)
        rows, width, _ = x.shape
        if tokens_N is not None:
            x, cos, sin = (each.flatten(0, 1)[tokens_N] for each in (x, cos, sin))

        def attend(number: int, qkv: Tensor) -> Tensor:
            if tokens_N is not None:
                qkv = _pad_rows(qkv, tokens_N, rows, width)
            kv = qkv[..., self.q_width :]
            if cache is not None and slots_N is not None:
                held = cache.kv[number].flatten(2)
                held.view(-1, self.kv_width).index_copy_(0, slots_N, kv.reshape(-1, self.kv_width))
                if end:  # the cache holds earlier tokens
                    kv = held[:, :end] if rows_B is None else held[:, :end].index_select(0, rows_B)
            attended = self._attend(qkv[..., : self.q_width], kv, mask)
            return attended if tokens_N is None else attended.flatten(0, 1)[tokens_N]

        states = self._through_layers(x, cos, sin, attend)
        return states if tokens_N is None else _pad_rows(states, tokens_N, rows, width)

    def _through_layers(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Run the embeddings `x` through all layers, and give the states after the final norm."""
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # all heads share them
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(_rms_norm(x, layer.norm_D, self.eps))
            self._rotate_qk(qkv[..., : self.rotated].unflatten(-1, (-1, self.head_dim)), layer, cos, sin)
            x = x + layer.out(attend(number, qkv))
            inner = _rms_norm(x, layer.mlp_norm_D, self.eps)
            gate, up = layer.gate_up(inner).chunk(2, dim=-1)
            x = x + layer.down(self.activation(gate).mul_(up))
        return _rms_norm(x, self.norm_D, self.eps)

    def _rotate_qk(self, heads: Tensor, layer: Layer, cos: Tensor, sin: Tensor) -> None:
        """Normalise and rotate the heads of q and k, [..., heads, head_dim], in place, if the layer does either."""
        if layer.head_norms is not None:
            heads.copy_(_scale_rows(heads, self.eps))
            parts = heads.split((self.heads, self.kv_heads), dim=-2)
            for part, weight_D in zip(parts, layer.head_norms, strict=True):
                part.mul_(weight_D)
        if layer.is_rotated:
            _rotate(heads, cos, sin)

    def _attend(self, q: Tensor, kv_BSW: Tensor, mask: Tensor | None) -> Tensor:
        """Give the attention's outputs, [B, T, heads * head_dim]. Without earlier tokens it is causal."""
        rows, width, _ = q.shape
        k, v = kv_BSW.view(rows, -1, 2, self.kv_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        if k.shape[2] == width and width > 1:
            q = q.view(rows, width, self.heads, self.head_dim).transpose(1, 2)
            out = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=self.scale, enable_gqa=self.heads != self.kv_heads
            )
            return out.transpose(1, 2).reshape(rows, width, -1)
        # Query heads that share a key head are folded into the token axis, as if they were further tokens.
        q = q.view(rows, width, self.kv_heads, -1, self.head_dim).permute(0, 2, 3, 1, 4)
        folded = q.reshape(rows, self.kv_heads, -1, self.head_dim)
        out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=self.scale)
        return out.view(q.shape).permute(0, 3, 1, 2, 4).reshape(rows, width, -1)

    def _mask(self, positions_BT: Tensor, end: int) -> Tensor:
        """Make the [B, 1, query heads per key head * T, S] mask, added to the scores to hide later slots."""
        unseen = torch.arange(end, device=positions_BT.device) > positions_BT[..., None]
        mask = torch.zeros(unseen.shape, dtype=self.embedding.dtype, device=unseen.device)
        mask.masked_fill_(unseen, float("-inf"))
        return mask.repeat(1, self.heads // self.kv_heads, 1)[:, None]


def _layer(layer: nn.Module) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    has_head_norms = hasattr(attention, "q_norm")
    return Layer(
        layer.input_layernorm.weight, Linear(attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.q_norm.weight, attention.k_norm.weight) if has_head_norms else None,
        bool(getattr(attention, "use_rope", True)),
        Linear(attention.o_proj), layer.post_attention_layernorm.weight,
        Linear(mlp.gate_proj, mlp.up_proj), Linear(mlp.down_proj),
    )  # fmt: skip


def _steady_length(config: PreTrainedConfig) -> int:
    """Give the context's length. With "longrope" it is at most the length beyond which the rotations change."""
    longest, rope = int(config.max_position_embeddings), config.rope_parameters
    return (
        min(longest, int(rope["original_max_position_embeddings"]))
        if rope["rope_type"] == "longrope"
        else longest
    )


def _rotations(causal: PreTrainedModel, context: int) -> tuple[Tensor, Tensor]:
    """Give [context, head_dim] cosines, and sines with the sign that `_rotate` expects: minus on the first half."""
    weight = causal.model.embed_tokens.weight
    positions = torch.arange(context, device=weight.device)[None]
    with torch.no_grad():
        cos, sin = causal.model.rotary_emb(weight, position_ids=positions)
    first, second = sin[0].chunk(2, dim=-1)
    return cos[0], torch.cat([-first, second], dim=-1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate [..., head_dim] in place. A coordinate of the first half is paired with the same one of the second."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1).mul_(sin)
    x.mul_(cos).add_(swapped)


def _pad_rows(x_ND: Tensor, tokens_N: Tensor, rows: int, width: int) -> Tensor:
    """Give [rows, width, D] with the tokens at their positions and zeros elsewhere."""
    padded = x_ND.new_zeros(rows * width, x_ND.shape[-1]).index_copy_(0, tokens_N, x_ND)
    return padded.view(rows, width, -1)


def _at_least_two(tokens: list[int]) -> list[int]:
    """Double a single token: a product of one row is another kernel, which rounds otherwise."""
    return tokens * 2 if len(tokens) == 1 else tokens


def _rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return _scale_rows(x, eps).mul_(weight_D)


def _scale_rows(x: Tensor, eps: float) -> Tensor:
    """Scale the rows of `x` to a mean square of one, up to `eps`; compute in float32 at least, and keep the type."""
    at_least_32 = x if x.dtype is torch.float64 else x.float()
    scale = at_least_32.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (at_least_32 * scale).to(x.dtype)


# Products with the weights of linear layers: joined where they have one input, and laid out for the
# processor.

_PACKING = ("_reorder_linear_weight", "_linear_pointwise", "data_ptr", "_nbytes")
_TYPICAL_ROWS = 8  # the batch size that oneDNN reorders weights for; measured to serve 1 to 512 rows


class Linear:
    """A matrix product with one or several linear layers of a model, joined into one."""

    def __init__(self, *layers: nn.Module) -> None:
        if not all(type(layer) is nn.Linear for layer in layers):
            raise TypeError(f"{type(layers[0]).__name__} is no plain linear layer: merge the adapter first")
        self.sources = [layer.weight for layer in layers]
        self.weight = (
            torch.cat([source.data for source in self.sources]) if layers[1:] else self.sources[0].data
        )
        biases = [layer.bias for layer in layers]
        self.bias = None if biases[0] is None else torch.cat([bias.data for bias in biases])
        self.is_packed = _can_pack(self.weight)
        if self.is_packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, _TYPICAL_ROWS)
            collapse(torch.ops.mkldnn.data_ptr(self.weight), torch.ops.mkldnn._nbytes(self.weight))
        elif layers[1:]:
            self._share_weights()
        self.made_of = [_weight_state(source) for source in self.sources]

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)

    def is_current(self) -> bool:
        return [_weight_state(source) for source in self.sources] == self.made_of

    def _share_weights(self) -> None:
        """Make each layer's weights a view of the joined ones."""
        at = 0
        for source in self.sources:
            source.data = self.weight[at : at + len(source)]
            at += len(source)


def _weight_state(weight: Tensor) -> tuple[object, ...]:
    """Give a weight's address, type and version; one of them changes when it is moved, cast or written to."""
    return weight.data_ptr(), weight.dtype, weight._version


def _can_pack(weight: Tensor) -> bool:
    """Tell whether oneDNN can multiply weights of this device and type with the operations that this torch has."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.bfloat16, torch.float32)
        and torch.backends.mkldnn.is_available()
        and (weight.dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and all(hasattr(torch.ops.mkldnn, name) for name in _PACKING)
    )


# Settings of memory: what the allocator keeps, and which tensors lie in huge pages.
#
# With its defaults glibc maps each tensor anew, and training spends most of its time in page faults. Raised
# thresholds keep the memory, but then a third of a training step is spent searching glibc's lists of free
# chunks. jemalloc does neither, once configured to treat large allocations like any other.

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 512 << 20, 128 << 20
_MADV_COLLAPSE, _HUGE = 25, 2 << 20  # Linux 6.1 and later
# By default jemalloc returns allocations over 8 MiB at once; freed memory is kept for 20 seconds instead.
_JEMALLOC_CONFIG = "oversize_threshold:0,dirty_decay_ms:20000,muzzy_decay_ms:20000"


def prefer_jemalloc(again: Sequence[str]) -> None:
    """Restart this process under jemalloc if the system has it; otherwise raise glibc's thresholds.

    `again` is the command line that starts the process again. Call this first: it replaces the process, and whatever
    was done before is lost. It returns only where no restart is needed, or none is possible.
    """
    library = ctypes.util.find_library("jemalloc")
    if library is None or not sys.platform.startswith("linux"):
        keep_large_tensors()
        return
    preloaded = os.environ.get("LD_PRELOAD", "")
    if "jemalloc" in preloaded:
        return
    environment = {
        "MALLOC_CONF": _JEMALLOC_CONFIG,
        **os.environ,
        "LD_PRELOAD": f"{library}:{preloaded}".rstrip(":"),
    }
    sys.stdout.flush()
    os.execve(again[0], list(again), environment)


def keep_large_tensors() -> bool:
    """Raise glibc's mmap and trim thresholds, so that this process keeps memory of freed tensors, but not all of it.

    Returns False if the C library is not glibc, or refuses.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    set_mmap = mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    return bool(set_mmap and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def collapse(address: int, num_bytes: int) -> int:
    """Move this memory with its content into huge pages, as far as the system can. Give the number of those pages.

    One system call is made for each page that holds a part of it, since small tensors share a page with their
    neighbours. A page that is not mapped as a whole stays as it was.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform.startswith("linux") else None
    if madvise is None:
        return 0
    pages = range(address // _HUGE * _HUGE, address + num_bytes, _HUGE)
    return sum(madvise(ctypes.c_void_p(p), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE) == 0 for p in pages)
