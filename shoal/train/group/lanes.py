"""Adding and copying pieces of memory: numpy where it knows the numbers, torch for the half ones.

numpy because it is always one thread (a background thread that starts OpenMP teams would fight the training for cores),
releases the GIL, and takes a slice in a tenth of torch's time; at 256 KB both add at the speed of the cache.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.train.wire.segment import Segment

HALF = (torch.float16, torch.bfloat16)


class Lane(Protocol):
    """How to work on one kind of number. A piece is what `over` or `at` returned, or a slice of it."""

    def over(self, tensor: Tensor) -> Any:
        """A flat host tensor as a piece."""
        ...

    def at(self, segment: Segment, offset: int, count: int) -> Any:
        """Shared bytes as a piece."""
        ...

    def copy(self, to: Any, source: Any) -> None: ...

    def add(self, one: Any, other: Any, out: Any) -> None: ...

    def divide(self, piece: Any, by: int) -> None:
        """In place; whole numbers are rounded down."""
        ...


def lane(dtype: torch.dtype) -> Lane:
    return _Torch(dtype) if dtype in HALF else _Numpy(dtype)


class _Numpy:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self.whole = self.dtype.kind in "iu"

    def over(self, tensor: Tensor) -> Any:
        return tensor.numpy()

    def at(self, segment: Segment, offset: int, count: int) -> Any:
        return segment.array(self.dtype, offset, count)

    def copy(self, to: Any, source: Any) -> None:
        np.copyto(to, source)

    def add(self, one: Any, other: Any, out: Any) -> None:
        np.add(one, other, out=out)

    def divide(self, piece: Any, by: int) -> None:
        if self.whole:
            np.floor_divide(piece, by, out=piece)
        elif by & (by - 1):
            np.true_divide(piece, by, out=piece)
        else:
            np.multiply(piece, 1 / by, out=piece)  # a power of two: as exact, in half the time


class _Torch:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def over(self, tensor: Tensor) -> Any:
        return tensor

    def at(self, segment: Segment, offset: int, count: int) -> Any:
        return segment.tensor(self.dtype, offset, count)

    def copy(self, to: Any, source: Any) -> None:
        to.copy_(source)

    def add(self, one: Any, other: Any, out: Any) -> None:
        torch.add(one, other, out=out)

    def divide(self, piece: Any, by: int) -> None:
        piece.div_(by)
