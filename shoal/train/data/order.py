"""Which places of one common order a worker reads, and in what batches. Pure arithmetic.

Place i of the order belongs to worker i mod size, so that step k of all workers together reads the same samples as step
k of one process with a batch `size` times as large. Every place is read once. Workers that must do the same number of
steps (`even`) get it without reading anything twice wherever that is possible: who would end one step early reads its
last batch in two parts. Only where a worker has fewer samples than steps does it repeat its last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Cut:
    """How `count` places are dealt to `size` workers, `batch` at a time."""

    count: int
    size: int = 1
    batch: int = 1
    drop_last: bool = False
    even: bool = True

    def own(self, rank: int) -> int:
        """How many places are the worker's."""
        return max(0, -(-(self.count - rank) // self.size))

    def steps(self, rank: int) -> int:
        """How many batches the worker reads."""
        rank_that_counts = rank
        if self.even:
            rank_that_counts = self.size - 1 if self.drop_last else 0  # who has fewest, who has most
        own = self.own(rank_that_counts)
        return own // self.batch if self.drop_last else -(-own // self.batch)

    def batches(self, rank: int, skip: int = 0) -> Iterator[list[int]]:
        """The places of each batch of the worker, without the first `skip` batches."""
        for step in range(skip, self.steps(rank)):
            yield self.at(rank, step)

    def at(self, rank: int, step: int) -> list[int]:
        """The places of one batch."""
        begin, end = self._bounds(rank, step)
        if begin < end:
            return [rank + number * self.size for number in range(begin, end)]
        return [self._again(rank)]

    def taken(self, rank: int, steps: int) -> int:
        """How many of its places the worker has read after so many steps."""
        return self._bounds(rank, steps - 1)[1] if steps else 0

    def repeated(self) -> int:
        """How many places are read a second time, by all workers together."""
        if not self.even or self.drop_last or self.count == 0:
            return 0
        steps = self.steps(0)
        return sum(max(0, steps - self.own(rank)) for rank in range(self.size))

    def _bounds(self, rank: int, step: int) -> tuple[int, int]:
        """From which to which of its own places; the same number twice when there is none for this step."""
        own, begin = self.own(rank), step * self.batch
        end = min(begin + self.batch, own)
        if self.drop_last or not self.even or -(-own // self.batch) == self.steps(rank):
            return min(begin, own), end
        # One step short, and so all batches are full: the last is read in two parts.
        last = own - 1
        if own and self.batch > 1:
            if step == self.steps(rank) - 2:
                return begin, last
            if step == self.steps(rank) - 1:
                return last, own
        return min(begin, own), end

    def _again(self, rank: int) -> int:
        own = self.own(rank)
        return rank + (own - 1) * self.size if own else rank % self.count


@dataclass(frozen=True)
class Layer:
    """What workers had read of an order when it was cut anew: `taken[rank]` of the places of each."""

    size: int
    taken: tuple[int, ...]


def remaining(order: Sequence[T], layers: Sequence[Layer]) -> Sequence[T]:
    """What nobody has read yet, in order: each layer was dealt from what the one before it left."""
    for layer in layers:
        if len(set(layer.taken)) == 1:
            order = order[layer.taken[0] * layer.size :]
        else:
            order = [one for i, one in enumerate(order) if i // layer.size >= layer.taken[i % layer.size]]
    return order
