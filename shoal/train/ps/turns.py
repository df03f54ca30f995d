"""One at a time, in the order they came: what happens to a space.

Who comes when nobody is at it acts in its own thread, which saves two changes of thread; what comes meanwhile waits for
a thread of the space. Where torch computes with several threads all acts are that thread's: each thread that computes
would have a team of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

Act = Callable[[], None]  # raises nothing


class Turns:
    """May be used from any thread, also from inside an act, whose own acts come later."""

    def __init__(self, name: str) -> None:
        self._waiting: deque[Act] = deque()
        self._taken = False  # somebody acts
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, act: Act, patient: bool = False) -> bool:
        """Acts, now or later. With `patient` the caller never does it itself. False, and it is never done, when all is
        over."""
        with self._changed:
            if self._over:
                return False
            if patient or self._taken or self._waiting or torch.get_num_threads() > 1:
                self._waiting.append(act)
                self._changed.notify()
                return True
            self._taken = True
        self._act(act)
        return True

    def close(self) -> None:
        """What waits is still done, nothing more after it. Harmless twice."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def _act(self, act: Act) -> None:
        try:
            act()
        finally:
            with self._changed:
                self._taken = False
                if self._waiting or self._over:
                    self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._taken and (self._waiting or self._over))
                if not self._waiting:
                    return
                act, self._taken = self._waiting.popleft(), True
            self._act(act)
            del act  # what it holds on to may be large, and the next one far away
