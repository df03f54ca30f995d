"""Time that does not jump: wall-clock seconds for records, deadlines for waits.

The machine's clock is read once, when the process starts; from then on time advances with the boot clock, which
counts sleep but ignores everybody who sets the clock. A jump of an hour ends no job an hour early.
"""

from __future__ import annotations

import time


def _ticks() -> float:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


_BASE = time.time() - _ticks()


def now() -> float:
    """Seconds since the epoch, never going back and never leaping within one process."""
    return _BASE + _ticks()


class Deadline:
    """A point in time to wait for; a jump of the machine's clock neither shortens nor lengthens it."""

    def __init__(self, seconds: float) -> None:
        self._at = _ticks() + seconds

    def left(self) -> float:
        return max(0.0, self._at - _ticks())

    def over(self) -> bool:
        return self.left() <= 0.0
