"""Tensors without numbers: shape, kind and device as if they were there. What an earlier stage of a pipeline computes
is known to a later one only so.

Between modules such a tensor makes everything that is computed with it one without numbers (`Mixing`); inside a module
it is on the meta device, where parameters of other stages are too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree


def is_empty(value: object) -> bool:
    """Whether it is a tensor without numbers."""
    return isinstance(value, FakeTensor) or (isinstance(value, Tensor) and value.is_meta)


class Mixing(TorchFunctionMode):
    """While it is open, operations may mix tensors with and without numbers. What comes from the meta device counts as
    being on `device`, like everything else here."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        values = [one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if any(is_empty(one) for one in values):
            args, kwargs = emptied((args, kwargs), self.device)
        return self.seen(values, func(*args, **kwargs))

    def seen(self, values: list[Tensor], result: Any) -> Any:
        """What an operation made of what, for those who follow."""
        return result


def emptied(value: Any, device: torch.device) -> Any:
    """The same without numbers; a tensor of the meta device is taken to be on `device`."""
    return tree.tree_map_only(Tensor, lambda one: _fake(one, device), value)


def computed(unit: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any, device: torch.device) -> Any:
    """What the unit's forward makes of such tensors, without numbers; its parameters and buffers stay untouched."""
    args, kwargs = tree.tree_map_only(Tensor, _meta, (args, kwargs))
    with _on_meta(unit), torch.no_grad(), torch._C.DisableTorchFunction():
        return emptied(forward(*args, **kwargs), device)


@lru_cache(maxsize=1)
def _mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def _fake(value: Tensor, device: torch.device) -> Tensor:
    if isinstance(value, FakeTensor):
        return value
    with torch._C.DisableTorchFunction(), _mode():
        place = device if value.is_meta else value.device
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=place)


def _meta(value: Tensor) -> Tensor:
    if value.is_meta and not isinstance(value, FakeTensor):
        return value
    with torch._C.DisableTorchFunction():
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")


@contextmanager
def _on_meta(unit: nn.Module) -> Iterator[None]:
    held = [(one, dict(one._parameters), dict(one._buffers)) for one in unit.modules()]
    try:
        for one, parameters, buffers in held:
            for name, parameter in parameters.items():
                if parameter is not None and not parameter.is_meta:
                    one._parameters[name] = nn.Parameter(_meta(parameter), requires_grad=parameter.requires_grad)
            for name, buffer in buffers.items():
                if buffer is not None and not buffer.is_meta:
                    one._buffers[name] = _meta(buffer)
        yield
    finally:
        for one, parameters, buffers in held:
            one._parameters.update(parameters)
            one._buffers.update(buffers)
