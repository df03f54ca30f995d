"""Flat tensors over one run of bytes: what a message is sent from and received into, without copying."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.train.errors import Disagreement
from shoal.train.flat import Flat


class Parcel:
    """Room for the values of a layout: `flats` to calculate with, `bytes` to send. Over memory of its own, or over
    `memory` that somebody else provides, which must be of the right length (Disagreement otherwise)."""

    def __init__(self, layout: Flat, memory: memoryview | None = None) -> None:
        self.bytes = memoryview(bytearray(layout.bytes)) if memory is None else memory
        if self.bytes.nbytes != layout.bytes:
            raise Disagreement(
                f"{self.bytes.nbytes} bytes of values came where this model has {layout.bytes}: do all train the same?"
            )
        self.flats: list[Tensor] = []
        at = 0
        for dtype, count in layout.sizes():
            size = count * dtype.itemsize
            self.flats.append(_over(self.bytes[at : at + size], dtype))
            at += size


def _over(part: memoryview, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(part, dtype=dtype) if part.nbytes else torch.empty(0, dtype=dtype)
