"""What a member is doing, as one number the others can compare with their own, and in words for people."""

from __future__ import annotations

import torch

GATHER, BROADCAST, SUM, MEAN, SEND = range(1, 6)
_KINDS = {GATHER: "gather", BROADCAST: "broadcast", SUM: "all-reduce", MEAN: "all-reduce", SEND: "message"}
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


def sign(kind: int, dtype: torch.dtype = torch.uint8, count: int = 0, source: int = 0) -> int:
    """Equal for equal calls. Kind, dtype, source and number of elements, from high bits to low."""
    return kind << 56 | _CODES.get(dtype, 255) << 48 | (source & 0xFF) << 40 | count & 0xFFFFFFFFFF


def words(number: int) -> str:
    """`all-reduce of 1024 float32`."""
    kind, code, count = number >> 56, number >> 48 & 0xFF, number & 0xFFFFFFFFFF
    if kind not in _KINDS:
        return "a call"
    if kind == GATHER:
        return _KINDS[kind]
    dtype = str(_DTYPES[code]).removeprefix("torch.") if code < len(_DTYPES) else "elements"
    mean = " (mean)" if kind == MEAN else ""
    return f"{_KINDS[kind]} of {count} {dtype}{mean}"
