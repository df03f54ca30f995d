"""A pass over an input, and what can be read pass by pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.train.data.order import Layer


@dataclass(frozen=True)
class Pass:
    """One reading of a loader: which one it is, whose part, and what was read of it before a restart."""

    epoch: int
    number: int  # among the passes of this loader in this epoch
    seed: int
    rank: int = 0
    size: int = 1
    even: bool = True
    skip: int = 0  # batches of this worker, of the same cut
    layers: tuple[Layer, ...] = ()  # what was read under other cuts
    start: Mapping[str, Any] | None = None  # random numbers at the start, when the order was drawn by a plain loop

    @property
    def resumed(self) -> bool:
        return bool(self.skip or self.layers or self.start)


class Source(Protocol):
    """One input. Opened once per pass; only the newest pass is read from."""

    kind: str
    sized: bool  # all workers can tell how many batches each of them will have

    def told(self) -> list[Any]:
        """What all workers must agree on."""
        ...

    def steps(self, one: Pass) -> int | None:
        """How many batches a whole pass has for this worker; None when unknown."""
        ...

    def open(self, one: Pass) -> Iterator[Any]:
        """The batches that are still to read."""
        ...

    def taken(self, one: Pass, steps: int) -> Layer | None:
        """What all workers had read when each had done so many steps of this pass; None when that is not known."""
        ...
