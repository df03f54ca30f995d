"""Messages from the shepherd's threads and from signals to its main loop, which sleeps until one comes."""

from __future__ import annotations

import os
import select
import signal
import threading
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple

from shoal.shepherd.journal import Journal


class Letter(NamedTuple):
    kind: str
    data: Dict[str, Any]


class Mailbox:
    """Many writers, one reader. A signal that has a Python-level handler also wakes the reader."""

    def __init__(self) -> None:
        self._letters: Deque[Letter] = deque()
        self._ear, self._bell = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._bell, False)

    def put(self, kind: str, /, **data: Any) -> None:
        self._letters.append(Letter(kind, data))
        try:
            os.write(self._bell, b".")
        except BlockingIOError:
            pass  # the bell is ringing already

    def wait(self, seconds: float) -> List[Letter]:
        """Sleeps until something comes, at most `seconds`, and takes what is there."""
        if not self._letters and select.select([self._ear], [], [], max(0.0, seconds))[0]:
            os.read(self._ear, 4096)
        return [self._letters.popleft() for _ in range(len(self._letters))]

    def hear_signals(self) -> None:
        """Main thread only."""
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)


def run_thread(name: str, body: Callable[[], None], mailbox: Mailbox, journal: Journal) -> threading.Thread:
    """A thread whose unexpected end reaches the main loop as a `crash` letter, with its traceback in the journal."""

    def guarded() -> None:
        try:
            body()
        except BaseException:
            journal.note(f"the thread {name} failed:\n{traceback.format_exc()}")
            mailbox.put("crash", thread=name)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
