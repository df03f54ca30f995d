"""One server per home: a file lock held for as long as the process lives, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from shoal._lib.clock import Deadline

_PATIENCE = 0.5  # seconds; whoever only looks holds the lock for a moment


class HomeLock:
    """The lock of one home. The file holds the holder's pid, for those who want to stop it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """False when another process holds it. Twice is harmless."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = Deadline(_PATIENCE)
        while not _try(descriptor, fcntl.LOCK_EX):
            if deadline.over():
                os.close(descriptor)
                return False
            time.sleep(0.02)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def holder_of(path: Path) -> int | None:
    """The pid of the process that holds the lock; None when nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if _try(descriptor, fcntl.LOCK_SH):
            return None
        text = os.pread(descriptor, 32, 0).decode()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
