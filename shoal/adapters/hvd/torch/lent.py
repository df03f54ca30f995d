"""Tensors as arrays that the engine works in, and the way back: no copy where memory can be lent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_WIDER = {torch.bfloat16: torch.float32}  # numpy has no bfloat16


@dataclass(frozen=True)
class Lent:
    """One tensor's numbers: `array` may be written. `back` puts what lies there into the tensor, if it is not there
    already."""

    tensor: Tensor
    host: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Lent:
        """The tensor itself where its memory is the host's, else a copy of it."""
        plain = tensor.detach()
        if plain.device.type != "cpu" or plain.dtype in _WIDER:
            plain = plain.to("cpu", _WIDER.get(plain.dtype, plain.dtype))
        return cls(tensor, plain)

    @property
    def array(self) -> Any:
        return self.host.numpy()

    def back(self) -> Tensor:
        if self.host.data_ptr() != self.tensor.data_ptr():
            self.tensor.detach().copy_(self.host)
        return self.tensor


def like(array: Any, tensor: Tensor) -> Tensor:
    """An array of the engine's as a tensor of that type, where that one is."""
    found = torch.from_numpy(array)
    return found.to(tensor.device, tensor.dtype) if found.dtype != tensor.dtype or tensor.is_cuda else found
