"""What can befall a simulated run, and what it came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from shoal.train.ps.orders import Apply


@dataclass(frozen=True)
class Fault:
    """At a time, a worker dies or joins; or the server (`worker=None`) dies and comes back at once."""

    at: float
    what: str  # die, join, restart
    worker: int | None = None


@dataclass(frozen=True)
class Pushed:
    """One push as the server saw it."""

    at: float
    worker: int
    step: int
    base: int
    tau: int


@dataclass
class Trace:
    """What a run came to."""

    workers: int
    params: Tensor
    version: int = 0
    seconds: float = 0.0
    pushes: list[Pushed] = field(default_factory=list)
    updates: list[Apply] = field(default_factory=list)
    dropped: int = 0
    busy: dict[int, float] = field(default_factory=dict)  # worker → seconds computing
    idle: dict[int, float] = field(default_factory=dict)  # worker → seconds waiting for others
    steps: Counter[int] = field(default_factory=Counter)  # worker → iterations finished

    @property
    def staleness(self) -> Counter[int]:
        return Counter(one.tau for one in self.pushes)

    @property
    def mean_staleness(self) -> float:
        return sum(one.tau for one in self.pushes) / max(1, len(self.pushes))

    @property
    def idle_share(self) -> float:
        """Of all workers' time."""
        idle, busy = sum(self.idle.values()), sum(self.busy.values())
        return idle / max(idle + busy, 1e-12)
