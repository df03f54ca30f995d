"""What a member is doing, as one number the others can compare with their own, and in words for people."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

GATHER, BROADCAST, SUM, MEAN, SEND, MIN, MAX, PRODUCT = range(1, 9)
REDUCTIONS = {"sum": SUM, "mean": MEAN, "min": MIN, "max": MAX, "product": PRODUCT}
_WORDS = {GATHER: "gather", BROADCAST: "broadcast", SEND: "message", **dict.fromkeys(REDUCTIONS.values(), "all-reduce")}
_OPS = {kind: op for op, kind in REDUCTIONS.items() if kind != SUM}
_DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8",
    "uint8", "bool", "complex64", "complex128", "uint16", "uint32", "uint64",
)  # fmt: skip
_UNKNOWN = 255


def sign(kind: int, dtype: Any = "uint8", count: int = 0, source: int = 0) -> int:
    """Equal for equal calls. Kind, dtype, source and number of elements, from high bits to low."""
    return kind << 56 | _code(dtype) << 48 | (source & 0xFF) << 40 | count & 0xFFFFFFFFFF


def words(number: int) -> str:
    """`all-reduce of 1024 float32`."""
    kind, code, count = number >> 56, number >> 48 & 0xFF, number & 0xFFFFFFFFFF
    if kind not in _WORDS:
        return "a call"
    if kind == GATHER:
        return _WORDS[kind]
    dtype = _DTYPES[code] if code < len(_DTYPES) else "elements"
    how = f" ({_OPS[kind]})" if kind in _OPS else ""
    return f"{_WORDS[kind]} of {count} {dtype}{how}"


@lru_cache(maxsize=64)
def named(dtype: Any) -> str:
    """`float32`, be it torch's or numpy's."""
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=64)
def _code(dtype: Any) -> int:
    name = named(dtype)
    return _DTYPES.index(name) if name in _DTYPES else _UNKNOWN
