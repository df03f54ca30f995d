"""Which rows of a file are a worker's own: a stretch of them, or every so-many-th. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Share:
    """One of `size` workers. Stretches need to be read by nobody else; rows dealt out in turn are a fair sample of a
    file that is sorted, for a framework that wants one."""

    rank: int
    size: int
    in_turn: bool = False

    def rows(self, total: int) -> slice:
        if self.in_turn:
            return slice(self.rank, total, self.size)
        return slice(total * self.rank // self.size, total * (self.rank + 1) // self.size)

    def numbers(self, counts: list[int]) -> NDArray[np.int64]:
        """The numbers of this worker's rows, when each worker has so many of the file."""
        own = np.arange(counts[self.rank], dtype=np.int64)
        return own * self.size + self.rank if self.in_turn else own + sum(counts[: self.rank])


ALL = Share(0, 1)
