"""What one member shows the others: a page of counters, a bell to sleep on, a lock that only its end lets go.

Every word has one writer, its owner. The owner stores its data, then the counter, then rings; x86-64 keeps that order,
so who sees the counter sees the data. Words are 64 bits, never wrap, and only grow.

The lock is a POSIX record lock: it goes when the process ends, however that happens, and unlike `flock` it is not
inherited by forked children (data loaders) that outlive their parent.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.train.wire import futex
from shoal.train.wire.segment import PAGE, Segment

READY, PID, ARRIVED, LEFT, GAVE_UP, PUT, OUT, BELL = range(8)
SIGN, AREA, WHEN = 8, 12, 16  # four each, for collectives that follow one another: see `Attendance.turn`
WORDS = 64  # of 8 bytes
SLEEPERS = 8 * WORDS  # offset of one byte per member: whether it sleeps on this bell
MOST = PAGE - SLEEPERS  # members that fit
SLICE = 0.05  # seconds of sleep until somebody looks whether the others still live


class Board:
    """The page at the head of one member's segment, seen by its owner or by another member."""

    def __init__(self, segment: Segment, lock: Path, members: int) -> None:
        self.segment = segment
        self.words = segment.view(0, 8 * WORDS).cast("q")
        self._lock = lock
        self._flags = segment.view(SLEEPERS, -(-members // 8) * 8)
        self._flag_words = self._flags.cast("q")
        self._bell = segment.address(8 * BELL)
        self._held: int | None = None
        self._rung = 0

    @classmethod
    def create(cls, path: Path, size: int, members: int) -> Board:
        """This member's own, locked before anybody can see it."""
        lock = _lock_of(path)
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            board = cls(Segment.create(path, size, touch=True), lock, members)
        except BaseException:
            os.close(held)
            raise
        board._held = held
        board.words[PID] = os.getpid()
        return board

    @classmethod
    def find(cls, path: Path, members: int) -> Board | None:
        """Another member's, once it is there and its owner lives; one left over from a former life is not it."""
        try:
            board = cls(Segment.open(path), _lock_of(path), members)
        except FileNotFoundError:
            return None
        return board if board.words[READY] and board.alive() else None

    def alive(self) -> bool:
        """Whether the owner's process still runs. Asks the kernel, about 5 µs."""
        if self.words[PID] == os.getpid():
            return True  # nobody conflicts with a lock of its own; and opening and closing the file would drop it
        try:
            file = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def ring(self) -> None:
        """Wakes who sleeps here. The owner's, after it stored what they wait for."""
        self._rung += 1
        self.words[BELL] = self._rung
        futex.fence()
        for flags in self._flag_words:
            if flags:
                futex.wake(self._bell)
                return

    @contextmanager
    def asleep(self, place: int) -> Iterator[None]:
        """Tells the owner that the member at that place must be woken."""
        self._flags[place] = 1
        try:
            yield
        finally:
            self._flags[place] = 0

    def sleep_unless(self, done: Callable[[], bool]) -> bool:
        """Looks, and if it is not done sleeps until the owner rings, a slice at most. Within `asleep`."""
        seen = self.words[BELL]
        futex.fence()
        if done():
            return True
        futex.wait(self._bell, seen, SLICE)
        return done()

    def close(self) -> None:
        """Lets go of the page; its owner, who has said that it leaves, also removes the names and the lock."""
        if self._held is not None:
            self.segment.unlink()
            self._lock.unlink(missing_ok=True)
            os.close(self._held)
            self._held = None
        self.segment.close()


def now() -> int:
    """Nanoseconds of the clock that all processes of a machine share."""
    return time.monotonic_ns()


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")
