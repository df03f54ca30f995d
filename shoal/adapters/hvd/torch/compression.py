"""What gradients are turned into before they travel, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Compressor:
    """As they are. The base of compressors of one's own."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What travels, and what `decompress` needs besides."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor


class NoneCompressor(Compressor):
    """As they are."""


class FP16Compressor(Compressor):
    """Half as many bits for real numbers; whole ones stay."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor.to(torch.float16) if tensor.is_floating_point() else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.to(ctx)


class Compression:
    """By name, for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
