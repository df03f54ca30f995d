"""A clock that jumps from event to event. Two events of one moment happen in the order in which they were planned."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """The time of a simulation, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def run(self, until: float = float("inf")) -> None:
        """Until nothing is planned any more, or the time has come."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
