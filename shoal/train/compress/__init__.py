"""Smaller gradients, with the error fed back into the next one.

`make(options)` gives the squeezer of one sender (encode to bytes, decode into a flat tensor); `reducer(options)` gives
the mean over a group, where every member squeezes. Both are None for `compress=none`: the caller does what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import BadSpec
from shoal.train.compress.api import Compressor, Reducer
from shoal.train.compress.halves import Halves
from shoal.train.compress.onebit import OneBit
from shoal.train.compress.powersgd import PowerSGD
from shoal.train.compress.reduce import Gathered, Halved
from shoal.train.compress.topk import TopK

__all__ = ["Compressor", "Halves", "OneBit", "PowerSGD", "Reducer", "TopK", "make", "reducer", "share"]


def make(options: Mapping[str, Any]) -> Compressor | None:
    """What one sender squeezes with; None for `compress=none`. Reads `compress` and `ratio`."""
    name = options.get("compress", "none")
    if name == "none":
        return None
    if name in ("fp16", "bf16"):
        return Halves(name)
    if name == "topk":
        return TopK(float(options.get("ratio", 0.01)))
    if name == "onebit":
        return OneBit()
    raise BadSpec(f"compress={name!r} has no form that one sender could use: choose fp16, bf16, topk or onebit")


def share(options: Mapping[str, Any]) -> float:
    """How much of what is squeezed travels, roughly, where that does not depend on shapes: of top-k's ratio each value
    has its place beside it."""
    shares = {"fp16": 0.5, "bf16": 0.5, "onebit": 1 / 32, "topk": 2 * float(options.get("ratio", 0.01))}
    return min(1.0, shares.get(str(options.get("compress", "none")), 1.0))


def reducer(options: Mapping[str, Any]) -> Reducer | None:
    """How a group takes a mean of squeezed tensors; None for `compress=none`. Reads `compress`, `ratio` and `rank`."""
    name = options.get("compress", "none")
    if name == "powersgd":
        return PowerSGD(int(options.get("rank", 2)))
    one = make(options)
    if isinstance(one, Halves):
        return Halved(one)
    return Gathered(one) if one is not None else None
