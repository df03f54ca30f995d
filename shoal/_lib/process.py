"""Processes as Linux shows them in /proc: who descends from whom, who carries a mark, and how to end them all.

A mark is an environment variable set when a process starts; children inherit it, so it finds what has left its group,
its session and its parent. Nothing here is found by name, and a number that was given to another process in the
meantime is not hit: the process is held by a pidfd while it is looked at.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Container, Dict, Iterable, List, NamedTuple, Optional, Set

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_PAUSE = 0.02  # seconds between two looks at what is left
_SWEEP_AT_MOST = 10.0  # seconds; a process in an uninterruptible wait dies when the wait ends
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

# Looked up once, because a child between fork and exec must not import or allocate more than it needs.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Stat(NamedTuple):
    """One line of /proc/PID/stat. `born` with `pid` names a process for ever."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu: float  # seconds, without children
    born: int  # clock ticks after boot
    rss: int  # bytes


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Asks the kernel to send `sig` to this process when the thread that forked it ends. Call between fork and exec."""
    if _prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends (child subreaper)."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) was refused")


def become(uid: int, gid: int) -> None:
    """Gives up root for good: another user and group, no further groups, no capabilities."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    # A process that changed its user may not even look at its own /proc/self/fd until this is said.
    if _prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) was refused")


def stat(pid: int) -> Optional[Stat]:
    """What the kernel says of a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            raw = file.read(1024)
    except OSError:
        return None
    # The name in parentheses may itself hold spaces and parentheses.
    fields = raw[raw.rfind(b")") + 2 :].split()
    if len(fields) < 22:
        return None
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    group, session, born, rss = int(fields[2]), int(fields[3]), int(fields[19]), int(fields[21]) * _PAGE
    return Stat(pid, fields[0].decode(), int(fields[1]), group, session, cpu, born, rss)


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    found = stat(pid)
    return found is not None and found.state not in ("Z", "X")


def pids() -> List[int]:
    """Every process that can be seen; empty where there is no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 – a Path each costs more
    except OSError:
        return []


def children(pid: int) -> List[int]:
    """The direct children of a process, zombies included; empty when it is gone."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 – as in pids()
    except OSError:
        return []
    found: List[int] = []
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", "rb", buffering=0) as file:
                found += map(int, file.read(1 << 20).split())
        except ProcessLookupError:
            continue
        except FileNotFoundError:
            if Path(f"/proc/{pid}/task/{task}").exists():  # a kernel built without CONFIG_PROC_CHILDREN
                return _children_by_scan(pid)
    return found


def descendants(pid: int) -> List[int]:
    """Everything below a process, without itself, parents before children."""
    found: List[int] = []
    pending = children(pid)
    while pending:
        child = pending.pop(0)
        found.append(child)
        pending += children(child)
    return found


def mark(pid: int, variable: str) -> Optional[str]:
    """The value of a variable in the environment the process was started with; None without it, or when gone."""
    return _find_mark(_environ(pid), variable)


def marked(variable: str, value: str, *, spare: Container[int] = ()) -> List[int]:
    """The processes that were started with `variable=value`, as far as this user may look; never the caller."""
    line = f"{variable}={value}".encode()
    me = os.getpid()
    return [pid for pid in pids() if pid != me and pid not in spare and line in _environ(pid).split(b"\0")]


def sweep(variable: str, value: str, *, grace: float = 0.0, spare: Container[int] = ()) -> List[int]:
    """Ends every process that carries the mark, and what they start meanwhile; returns those it found.

    SIGTERM first when there is a grace (seconds), then SIGKILL until a look finds none. Returns within `grace` + 10 s,
    also when a process cannot die yet; harmless when called twice or when nothing is there.
    """
    found: Set[int] = set()
    kill_at = time.monotonic() + grace
    give_up_at = kill_at + _SWEEP_AT_MOST
    asked: Set[int] = set()
    while True:
        now = time.monotonic()
        left = marked(variable, value, spare=spare)
        if not left or now >= give_up_at:
            return sorted(found)
        found.update(left)
        if now >= kill_at:
            _signal_marked(left, signal.SIGKILL, variable, value)
        else:
            _signal_marked(set(left) - asked, signal.SIGTERM, variable, value)
            asked.update(left)
        time.sleep(_SWEEP_PAUSE)


def send(pid: int, sig: int) -> bool:
    """Signals one process; False when it is gone or belongs to another user."""
    try:
        os.kill(pid, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_group(group: int, sig: int) -> bool:
    """Signals a process group; False when nobody is in it."""
    try:
        os.killpg(group, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def unique_memory(pid: int) -> int:
    """Bytes this process answers for when pages are shared out among their users (PSS); resident size where hidden."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # gone, or a kernel without it: the resident size below answers for both
    found = stat(pid)
    return found.rss if found else 0


def disk_bytes(pid: int) -> Dict[str, int]:
    """Bytes the process made the disks read and write; zeros when gone or hidden."""
    counts = {"read_bytes": 0, "write_bytes": 0}
    try:
        with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
            lines = file.read(4096).splitlines()
    except OSError:
        return counts
    for line in lines:
        name, _, number = line.decode().partition(": ")
        if name in counts:
            counts[name] = int(number)
    return counts


def _children_by_scan(pid: int) -> List[int]:
    return [found.pid for found in map(stat, pids()) if found is not None and found.parent == pid]


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _find_mark(environ: bytes, variable: str) -> Optional[str]:
    start = f"{variable}=".encode()
    for line in environ.split(b"\0"):
        if line.startswith(start):
            return os.fsdecode(line[len(start) :])
    return None


def _signal_marked(found: Iterable[int], sig: int, variable: str, value: str) -> None:
    for pid in found:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            if not hasattr(signal, "pidfd_send_signal"):
                send(pid, sig)
            continue
        try:
            # Looked at again while the pidfd holds it: the number may be someone else's by now.
            if mark(pid, variable) == value:
                signal.pidfd_send_signal(handle, sig)
        except (ProcessLookupError, PermissionError):
            continue
        finally:
            os.close(handle)
