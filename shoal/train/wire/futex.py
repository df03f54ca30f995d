"""Sleeping on a word of shared memory until another process changes it: the futex of Linux, reached through ctypes.

A waiter reads the word, looks whether what it needs has happened, and only then sleeps as long as the word still has
the value it read; the kernel compares and sleeps in one step, so no wake-up is lost. Where the system refuses the call
(a seccomp filter, another processor) waiting becomes short sleeps: slower, never wrong.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import threading
import time

NUMBER = 202  # of the system call, on x86-64
WAIT, WAKE = 0, 1  # between processes: without FUTEX_PRIVATE_FLAG
EVERYBODY = 2**31 - 1
NAP = 0.0005  # seconds, where the call is refused

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_refused = sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64")


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleeps while the 32-bit word at the address is `seen`, for at most that long. May return for no reason: look
    again."""
    global _refused
    if _refused:
        time.sleep(min(NAP, seconds))
        return
    span = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    pointer = ctypes.c_void_p(address)
    word = ctypes.c_uint32(seen & 0xFFFFFFFF)
    if _syscall(NUMBER, pointer, WAIT, word, ctypes.byref(span), None, 0) == -1:
        _refused = ctypes.get_errno() in (errno.ENOSYS, errno.EPERM, errno.EACCES)


def wake(address: int) -> None:
    """Wakes everybody who sleeps on the word. The word must have been changed before."""
    if not _refused:
        _syscall(NUMBER, ctypes.c_void_p(address), WAKE, EVERYBODY, None, None, 0)


_fence = threading.Lock()


def fence() -> None:
    """Makes what was stored visible to others before anything is loaded: taking a lock is a locked instruction."""
    _fence.acquire()
    _fence.release()


def give_way() -> None:
    """Lets another process have the core: what a spinning waiter does between two looks."""
    os.sched_yield()
