"""The largest entries only, each with its place. With ratio 1 nothing is squeezed and no places are sent.

Contraction: |x − C(x)|² ≤ (1 − k/d)·|x|², because what is kept is at least as large as what is not.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from shoal.train.compress.api import Compressor, as_bytes, plain

WIDE = 2**31  # entries from which a place no longer fits 32 bits


class TopK(Compressor):
    name = "topk"

    def __init__(self, ratio: float = 0.01) -> None:
        super().__init__()
        self.ratio = ratio

    def squeeze(self, flat: Tensor) -> Tensor:
        kept = self.kept(flat.numel())
        if kept == flat.numel():
            code = flat.clone().view(torch.uint8)
            flat.zero_()
            return code
        places = torch.topk(flat.abs(), kept, sorted=False).indices
        values = flat[places]
        flat[places] = 0.0
        return torch.cat([values.view(torch.uint8), places.to(_place(flat)).view(torch.uint8)])

    def decode(self, code: Any, out: Tensor) -> None:
        kept, dtype = self.kept(out.numel()), plain(out.dtype)
        found = as_bytes(code)
        if kept == out.numel():
            out.copy_(found.view(dtype))
            return
        # The two halves may lie askew in a buffer that was received: torch reads them only aligned.
        values, places = _aligned(found[: kept * dtype.itemsize], dtype), found[kept * dtype.itemsize :]
        out.zero_()
        out[_aligned(places, _place(out)).long()] = values.to(out.dtype)

    def kept(self, numel: int) -> int:
        return min(numel, max(1, math.ceil(self.ratio * numel)))

    def size(self, flat: Tensor) -> int:
        kept, value = self.kept(flat.numel()), plain(flat.dtype).itemsize
        return kept * value if kept == flat.numel() else kept * (value + _place(flat).itemsize)


def _place(flat: Tensor) -> torch.dtype:
    return torch.int32 if flat.numel() < WIDE else torch.int64


def _aligned(code: Tensor, dtype: torch.dtype) -> Tensor:
    if code.data_ptr() % dtype.itemsize or code.storage_offset() % dtype.itemsize:
        code = code.clone()
    return code.view(dtype)
