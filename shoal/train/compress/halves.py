"""Sixteen bits a value: `fp16` has more digits, `bf16` more range. Half the bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.train.compress.api import Compressor, as_bytes

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Halves(Compressor):
    """Values beyond the range are sent as the largest there is; the rest of them follows with the error."""

    def __init__(self, name: str = "fp16") -> None:
        super().__init__()
        self.name = name
        self.dtype = TYPES[name]

    def squeeze(self, flat: Tensor) -> Tensor:
        half = self.halve(flat)
        flat.sub_(half)
        return half.view(torch.uint8)

    def halve(self, flat: Tensor) -> Tensor:
        top = torch.finfo(self.dtype).max
        return flat.clamp(-top, top).to(self.dtype)

    def decode(self, code: Any, out: Tensor) -> None:
        out.copy_(as_bytes(code).view(self.dtype))

    def size(self, flat: Tensor) -> int:
        return 2 * flat.numel()
