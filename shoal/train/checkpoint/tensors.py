"""One file of named tensors: a header in JSON, then their bytes, one after another. The layout is that of safetensors,
so that any tool can read the weights of a run; nothing in it is ever executed.

    8 bytes   length of the header, little endian
    header    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {…}}
    data      without gaps; the widest kinds of number first, so that each begins at a multiple of its width

Reading maps the file: a tensor costs memory when it is touched, and may be written to without changing the file.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.train.errors import BadCheckpoint

SUFFIX = ".safetensors"
MOST_HEADER = 100 << 20  # bytes; what the original allows

_LENGTH = struct.Struct("<Q")
_NOTES = "__metadata__"
_ALIGN = 8

_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.complex128: "C128",  # not known to the original; optimizers of complex models have it
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in the data."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def view(self, data: Tensor) -> Tensor:
        """The tensor, in the bytes of the whole."""
        return data[self.begin : self.end].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Layout:
    """The header of a file and the place of every tensor in it."""

    entries: tuple[Entry, ...]
    header: bytes
    size: int  # of the data

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> Layout:
        """The layout for these tensors; BadCheckpoint for what has no plain bytes."""
        order = sorted(tensors, key=lambda name: -tensors[name].element_size())
        entries, at = [], 0
        for name in order:
            one = tensors[name]
            _check(name, one)
            end = at + one.numel() * one.element_size()
            entries.append(Entry(name, one.dtype, tuple(one.shape), at, end))
            at = end
        return cls(tuple(entries), _header(entries, notes), at)


def _check(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _NAMES or tensor.layout != torch.strided or tensor.device.type == "meta":
        kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise BadCheckpoint(f"a checkpoint cannot hold the tensor {name!r} ({kind}): keep it dense, on a real device")


def _header(entries: list[Entry], notes: Mapping[str, str] | None) -> bytes:
    told: dict[str, Any] = {_NOTES: dict(notes)} if notes else {}
    for one in entries:
        told[one.name] = {"dtype": _NAMES[one.dtype], "shape": one.shape, "data_offsets": [one.begin, one.end]}
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    return _LENGTH.pack(len(text)) + text


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped into memory. BadCheckpoint when the file does not make sense."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if size < _LENGTH.size:
            raise _wrong(path, "it is too short")
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    (length,) = _LENGTH.unpack_from(whole)
    start = _LENGTH.size + length
    if length > MOST_HEADER or start > size:
        raise _wrong(path, f"its header claims {length} bytes")
    entries = _entries(path, bytes(whole[_LENGTH.size : start]), size - start)
    data = (
        torch.frombuffer(whole, dtype=torch.uint8, offset=start) if size > start else torch.empty(0, dtype=torch.uint8)
    )
    return {one.name: _tensor(one, data) for one in entries}


def _tensor(entry: Entry, data: Tensor) -> Tensor:
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    return entry.view(data)


def _entries(path: Path, header: bytes, size: int) -> list[Entry]:
    try:
        told = json.loads(header)
        told.pop(_NOTES, None)
        entries = [
            Entry(name, _DTYPES[one["dtype"]], tuple(one["shape"]), *one["data_offsets"]) for name, one in told.items()
        ]
        for one in entries:
            count = 1
            for side in one.shape:
                count *= side
            if not 0 <= one.begin <= one.end <= size or one.end - one.begin != count * one.dtype.itemsize:
                raise _wrong(path, f"{one.name!r} is said to lie at {one.begin}..{one.end} of {size} bytes")
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise _wrong(path, f"its header cannot be read ({wrong})") from wrong
    return entries


def _wrong(path: Path, why: str) -> BadCheckpoint:
    return BadCheckpoint(f"{path} is not a file of tensors: {why}; take an earlier checkpoint")
