"""Whether to stop: SIGTERM sets a flag, and workers that go in step agree on the step at which they stop.

The signal is taken over when the script first asks, so a script that never asks ends at once, as it would without us.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from shoal.train.group.api import Group

PERIOD = 0.2  # seconds between two agreements, about: they cost an exchange each
LONGEST = 10_000  # calls between two agreements
_AGREES_AT = 2  # of the first calls, every one agrees


class Stop:
    """The question of one run. `group` is that of the workers that must agree; None where each decides alone."""

    def __init__(self, group: Callable[[], Group] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.asked = False  # this worker was told to
        self.agreed = False
        self._group, self._clock = group, clock
        self._before: Any = None
        self._listening, self._pid = False, 0
        self._calls = 0
        self._next, self._every = 1, 1
        self._last: float | None = None

    def __call__(self) -> bool:
        """Whether to stop now. Collective where workers go in step: every one of them asks, equally often."""
        self.listen()
        if self._group is None:
            return self.asked
        self._calls += 1
        if not self.agreed and self._calls >= self._next:
            self._agree(self._group())
        return self.agreed

    def listen(self) -> None:
        """From now on SIGTERM only sets the flag (and calls whom it called before). Harmless twice."""
        if self._listening or threading.current_thread() is not threading.main_thread():
            return
        self._listening, self._pid = True, os.getpid()
        self._before = signal.signal(signal.SIGTERM, self._told)

    def close(self) -> None:
        """Gives the signal back. Harmless twice."""
        if self._listening and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._told:
                signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
            self._listening = False

    def _told(self, number: int, frame: FrameType | None) -> None:
        if self.asked or os.getpid() != self._pid:  # somebody means it; or a child that was forked is to end
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.asked = True
        if callable(self._before):
            self._before(number, frame)

    def _agree(self, group: Group) -> None:
        """One asked: all stop. How many calls until the next agreement, the first member says for all."""
        now = self._clock()
        if self._last is not None and self._calls > _AGREES_AT:
            pace = (now - self._last) / self._every
            self._every = max(1, min(LONGEST, round(PERIOD / pace) if pace > 0 else LONGEST))
        told = group.gather([int(self.asked), self._every])
        self.agreed = any(asked for asked, _ in told)
        self._every = int(told[0][1])
        self._last, self._next = self._clock(), self._calls + self._every
