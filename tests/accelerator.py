"""A pretended accelerator: its tensors compute on the host, and as on a real one are not mixed with the host's own.

With it a machine without an accelerator sees what would fail on one: a tensor that was made on the host by default, a
`numpy()` of a tensor that is not there, and work that waits for the device once for each document.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("maia:0")  # torch knows the name, and no machine of ours has one
_Tensor: Any = torch.Tensor
_READS = {
    _Tensor.tolist: "tolist", _Tensor.item: "item", _Tensor.cpu: "cpu", _Tensor.nonzero: "nonzero",
    _Tensor.__bool__: "bool", _Tensor.__int__: "int", _Tensor.__float__: "float", _Tensor.__index__: "index",
}  # fmt: skip
_INDEXING = (_Tensor.__getitem__, _Tensor.__setitem__)


class MixedDevices(AssertionError):
    """An operation got tensors of the host beside those of the device."""


class DeviceTensor(torch.Tensor):
    """A tensor on the pretended device; `host` has its numbers."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> Self:
        made: Self = _Tensor._make_wrapper_subclass(cls, host.size(), dtype=host.dtype, device=DEVICE)
        return made

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _Tensor.device.__get__:
            return DEVICE
        if func is _Tensor.numpy:
            raise TypeError(f"a tensor on {DEVICE} has no numpy(): copy it to the host first")
        if func == _Tensor.data.__set__:
            args[0].host = args[1].host
            return None
        if func is _Tensor.to:
            return _move(args[0], *args[1:], **kwargs)
        if func is not _Tensor.copy_:
            _refuse_host(func, args, kwargs)
        if func in _READS:
            Accelerator.waits[_READS[func]] += 1
        result = func(*tree_map(_host_of, args), **_on_host(tree_map(_host_of, kwargs)))
        return result if func is _Tensor.cpu else _on_device(result, args)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was given a tensor of {DEVICE} in disguise")


class Accelerator(TorchFunctionMode):
    """The pretended device, within a `with`.

    `waits` counts what the host waited for, by its kind, and `read` the ids that embeddings were given, by their shape.
    """

    waits: ClassVar[Counter[str]] = Counter()
    read: ClassVar[Counter[tuple[int, ...]]] = Counter()

    def __enter__(self) -> Self:
        self.clear()
        super().__enter__()
        return self

    def clear(self) -> None:
        """Begins to count anew."""
        self.waits.clear()
        self.read.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding:
            self.read[tuple(args[0].shape)] += 1
        if func is _Tensor.to and any(map(_is_device, (*args[1:], *kwargs.values()))):
            return _move(args[0], *args[1:], **kwargs)
        if _is_device(kwargs.get("device")):
            return _on_device(func(*args, **_on_host(kwargs)), ())
        return func(*args, **kwargs)


def _move(tensor: torch.Tensor, *target: Any, **options: Any) -> Any:
    """Copies a tensor to the device or to the host, or converts it where it is."""
    named = [one for one in (*target, *options.values()) if isinstance(one, str | torch.device)]
    ours = isinstance(tensor, DeviceTensor)
    to_host = bool(named) and not _is_device(named[0])
    if ours and to_host:
        Accelerator.waits["to"] += 1
    host = _host_of(tensor).to(
        *[torch.device("cpu") if _is_device(one) else one for one in target],
        **{k: v for k, v in _on_host(options).items() if k != "non_blocking"},
    )
    if to_host or not (ours or named):
        return host
    return tensor if ours and host is _host_of(tensor) else DeviceTensor(host)


def _is_device(one: Any) -> bool:
    return isinstance(one, str | torch.device) and str(one).partition(":")[0] == DEVICE.type


def _on_host(options: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.device("cpu") if _is_device(v) else v for k, v in options.items()}


def _host_of(one: Any) -> Any:
    return one.host if isinstance(one, DeviceTensor) else one


def _on_device(result: Any, args: Any) -> Any:
    """Give the result on the device; what an operation has changed in place is the tensor that it was given."""
    given = {id(one.host): one for one in tree_flatten(args)[0] if isinstance(one, DeviceTensor)}

    def wrap(one: Any) -> Any:
        return given.get(id(one), DeviceTensor(one)) if isinstance(one, torch.Tensor) else one

    return tree_map(wrap, result)


def _refuse_host(func: Any, args: Any, kwargs: Any) -> None:
    """Refuses tensors of the host beside ours, and lists as an index, which would become such."""
    leaves = tree_flatten((args, kwargs))[0]
    if func in _INDEXING:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        leaves += [torch.tensor(one) for one in index if isinstance(one, list)]
    strays = [one for one in leaves if isinstance(one, torch.Tensor) and not isinstance(one, DeviceTensor)]
    if any(one.dim() for one in strays):
        raise MixedDevices(f"{func} got tensors of the host beside those on {DEVICE}")


def moved(model: nn.Module) -> Any:
    """Moves a model to the pretended device."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(DeviceTensor(weight.data), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = DeviceTensor(buffer)
    return model
