"""What gradients are turned into before they travel, and back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """As they are. The base of compressors of one's own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """What travels, and what `decompress` needs besides."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class NoneCompressor(Compressor):
    """As they are."""


class FP16Compressor(Compressor):
    """Half as many bits for real numbers; whole ones stay."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class Compression:
    """By name, for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
