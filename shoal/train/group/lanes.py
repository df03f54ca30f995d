"""Combining and copying pieces of memory: numpy where it knows the numbers, torch for the half ones.

numpy because it is always one thread (a background thread that starts OpenMP teams would fight the training for cores),
releases the GIL, and takes a slice in a tenth of torch's time; at 256 KB both add at the speed of the cache. And where
there is no torch, as in TensorFlow's processes, everything but bfloat16 goes without it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal.train.group import calls
from shoal.train.wire.segment import Segment

if TYPE_CHECKING:
    import torch

HALF = ("float16", "bfloat16")


class Lane(Protocol):
    """How to work on one kind of number. A piece is what `over` or `at` returned, or a slice of it."""

    def over(self, flat: Any) -> Any:
        """A flat host tensor or array as a piece."""
        ...

    def at(self, segment: Segment, offset: int, count: int) -> Any:
        """Shared bytes as a piece."""
        ...

    def copy(self, to: Any, source: Any) -> None: ...

    def combine(self, op: str, one: Any, other: Any, out: Any) -> None:
        """By `sum`, `min`, `max` or `product`, one by one."""
        ...

    def divide(self, piece: Any, by: int) -> None:
        """In place; whole numbers are rounded down."""
        ...


def lane(dtype: Any) -> Lane:
    """For a dtype of torch's or of numpy's."""
    name = calls.named(dtype)
    if name in HALF and "torch" in sys.modules:  # torch adds half numbers ten times as fast
        return _Torch(getattr(sys.modules["torch"], name))
    return _Numpy(np.dtype(name) if type(dtype).__module__ == "torch" else dtype)


def pieces_of(flat: Any) -> tuple[Lane, Any]:
    """The lane for a flat tensor or array, and it as a piece."""
    how = lane(flat.dtype)
    return how, how.over(flat)


_UFUNCS: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


class _Numpy:
    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.whole = self.dtype.kind in "iu"

    def over(self, flat: Any) -> Any:
        return flat if isinstance(flat, np.ndarray) else flat.numpy()

    def at(self, segment: Segment, offset: int, count: int) -> Any:
        return segment.array(self.dtype, offset, count)

    def copy(self, to: Any, source: Any) -> None:
        np.copyto(to, source)

    def combine(self, op: str, one: Any, other: Any, out: Any) -> None:
        _UFUNCS[op](one, other, out=out)

    def divide(self, piece: Any, by: int) -> None:
        if self.whole:
            np.floor_divide(piece, by, out=piece)
        elif by & (by - 1):
            np.true_divide(piece, by, out=piece)
        else:
            np.multiply(piece, 1 / by, out=piece)  # a power of two: as exact, in half the time


class _Torch:
    def __init__(self, dtype: torch.dtype) -> None:
        import torch

        self.dtype = dtype
        self._ops: dict[str, Any] = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "product": torch.mul}
        self._from_numpy = torch.from_numpy

    def over(self, flat: Any) -> Any:
        return self._from_numpy(flat) if isinstance(flat, np.ndarray) else flat

    def at(self, segment: Segment, offset: int, count: int) -> Any:
        return segment.tensor(self.dtype, offset, count)

    def copy(self, to: Any, source: Any) -> None:
        to.copy_(source)

    def combine(self, op: str, one: Any, other: Any, out: Any) -> None:
        self._ops[op](one, other, out=out)

    def divide(self, piece: Any, by: int) -> None:
        piece.div_(by)
