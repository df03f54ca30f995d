"""Plain data with tensors in it, as JSON and a table of tensors, and back. What it cannot hold it refuses by its place.

A state dict is maps, lists, numbers and tensors, but not quite JSON: keys are whole numbers, tuples matter to `betas`,
a scheduler holds a Counter, a best loss begins at infinity. Such values become `{"$": kind, "v": …}`.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.train.errors import BadCheckpoint

MARK = "$"


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; its tensors go into `tensors` under names that begin with `name`."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else _marked("float", repr(value))
    if isinstance(value, Tensor):
        return _marked("tensor", _keep(value.detach(), name, tensors))
    if isinstance(value, Mapping):
        return _pack_map(value, name, tensors)
    if isinstance(value, list):
        return _pack_all(value, name, tensors)
    for kind, word in _ROWS:
        if isinstance(value, kind):
            return _marked(word, _pack_all(value, name, tensors))
    return _pack_rare(value, name, tensors)


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The opposite of `pack`; BadCheckpoint when a tensor is missing or a mark is unknown."""
    if isinstance(packed, list):
        return [unpack(one, tensors) for one in packed]
    if not isinstance(packed, dict):
        return packed
    if MARK not in packed:
        return {key: unpack(one, tensors) for key, one in packed.items()}
    kind, value = packed[MARK], packed["v"]
    if kind in ("tensor", "array"):
        if value not in tensors:
            raise BadCheckpoint(f"the checkpoint lacks the tensor {value!r}; take an earlier one")
        return tensors[value] if kind == "tensor" else tensors[value].numpy()
    if kind == "map":
        return {unpack(key, tensors): unpack(one, tensors) for key, one in value}
    if kind not in _READERS:
        raise BadCheckpoint(
            f"the checkpoint holds a {kind!r}, which this version of Shoal does not know; use a newer one"
        )
    return _READERS[kind](unpack(value, tensors))


_ROWS: tuple[tuple[type, str], ...] = (
    (torch.Size, "tuple"),
    (tuple, "tuple"),
    (deque, "deque"),
    (frozenset, "set"),
    (set, "set"),
)

_READERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "tuple": tuple,
    "deque": deque,
    "set": set,
    "counter": lambda pairs: Counter(dict(pairs)),
    "bytes": base64.b64decode,
    "complex": lambda pair: complex(*pair),
    "dtype": lambda name: getattr(torch, name),
    "device": torch.device,
    "number": lambda pair: np.dtype(pair[0]).type(pair[1]),
}


def _pack_map(value: Mapping[Any, Any], name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Counter):
        return _marked("counter", [[pack(key, name, tensors), count] for key, count in value.items()])
    if all(type(key) is str for key in value) and MARK not in value:
        return {key: pack(one, _under(name, key), tensors) for key, one in value.items()}
    return _marked("map", [[pack(k, name, tensors), pack(one, _under(name, k), tensors)] for k, one in value.items()])


def _pack_all(values: Any, name: str, tensors: dict[str, Tensor]) -> list[Any]:
    return [pack(one, _under(name, number), tensors) for number, one in enumerate(values)]


def _pack_rare(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return _marked("bytes", base64.b64encode(value).decode())
    if isinstance(value, torch.dtype):
        return _marked("dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return _marked("device", str(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return _marked("array", _keep(torch.from_numpy(np.ascontiguousarray(value)), name, tensors))
    if isinstance(value, np.generic) and value.dtype.kind in "fiub":
        return _marked("number", [value.dtype.name, pack(value.item(), name, tensors)])
    if isinstance(value, complex):
        return _marked("complex", [pack(value.real, name, tensors), pack(value.imag, name, tensors)])
    if isinstance(value, int):  # an IntEnum and the like
        return int(value)
    if isinstance(value, float):
        return pack(float(value), name, tensors)
    raise BadCheckpoint(
        f"a checkpoint cannot hold {name!r}, a {type(value).__name__}: nothing is pickled; make it numbers, text, "
        "tensors, or lists and maps of these"
    )


def _keep(tensor: Tensor, name: str, tensors: dict[str, Tensor]) -> str:
    """Files the tensor under a name nobody has; a map with keys 1 and "1" would otherwise give one name twice."""
    free, number = name, 1
    while free in tensors:
        number += 1
        free = f"{name}~{number}"
    tensors[free] = tensor
    return free


def _under(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _marked(kind: str, value: Any) -> dict[str, Any]:
    return {MARK: kind, "v": value}
