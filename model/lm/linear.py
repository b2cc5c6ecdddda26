"""Products with the weights of linear layers: joined where they have one input, and laid out for the processor."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colmlm.model.lm.memory import collapse

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
            self._share()
        self.made_of = [_identity(source) for source in self.sources]

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)

    def is_current(self) -> bool:
        return [_identity(source) for source in self.sources] == self.made_of

    def _share(self) -> None:
        """Makes each layer's weights a view of the joined ones."""
        at = 0
        for source in self.sources:
            source.data = self.weight[at : at + len(source)]
            at += len(source)


def _identity(weight: Tensor) -> tuple[object, ...]:
    """Gives values of which one changes when a weight is moved, cast or written to."""
    return weight.data_ptr(), weight.dtype, weight._version


def _can_pack(weight: Tensor) -> bool:
    """Tells whether oneDNN can multiply weights of this device and type with the operations that this torch has."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.bfloat16, torch.float32)
        and torch.backends.mkldnn.is_available()
        and (weight.dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and all(hasattr(torch.ops.mkldnn, name) for name in _PACKING)
    )
