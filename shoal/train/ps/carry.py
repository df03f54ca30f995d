"""Dumps of shards on a wire: what describes them in the meta, their tensors end to end as the payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.train.ps.dump import Dump
from shoal.train.ps.slots import as_bytes
from shoal.train.wire.frames import Buffer

Described = dict[str, Any]


def packed(dumps: Sequence[Dump]) -> tuple[list[Described], list[Buffer]]:
    """What to send for these dumps, not copied."""
    described = [
        {"meta": dict(dump.meta), "tensors": [[name, one.numel(), _name(one)] for name, one in dump.tensors.items()]}
        for dump in dumps
    ]
    return described, [as_bytes(_flat(one)) for dump in dumps for one in dump.tensors.values()]


def unpacked(described: Sequence[Mapping[str, Any]], payload: memoryview) -> list[Dump]:
    """The dumps behind a message; their tensors lie in the payload."""
    dumps, at = [], 0
    for one in described:
        tensors: dict[str, Tensor] = {}
        for name, count, kind in one["tensors"]:
            dtype = getattr(torch, str(kind))
            size = int(count) * dtype.itemsize
            piece = payload[at : at + size]
            tensors[str(name)] = torch.frombuffer(piece, dtype=dtype) if size else torch.empty(0, dtype=dtype)
            at += size
        dumps.append(Dump(dict(one["meta"]), tensors))
    return dumps


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu").contiguous().view(-1)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
