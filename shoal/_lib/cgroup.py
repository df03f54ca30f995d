"""Control groups: a limit around one process tree, through cgroup v2, v1, or not at all.

A group is made below the group this process lives in, the only place it may reasonably write to. What a machine does
not grant is told, not raised: `make` answers None, or a group whose `holds_memory` is False, and the caller watches.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Dict, List, Optional, Set, Tuple

from shoal._lib import process

_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000
_REMOVE_FOR = 0.5  # seconds; the kernel lets go of a dead process a moment after it was reaped


class Cgroup:
    """One group, possibly in several hierarchies. All methods are harmless when the group is already gone."""

    def __init__(self, folders: Dict[str, Path], version: int) -> None:
        self.version = version
        self.holds_memory = False  # whether the kernel enforces the memory limit that was asked for
        self.holds_cpu = False
        self._folders = folders

    @property
    def folders(self) -> List[Path]:
        """Where it lies, for whoever must take it away should its maker be killed: an empty one is just a folder."""
        return list(dict.fromkeys(self._folders.values()))

    @property
    def doors(self) -> List[str]:
        """The files a child writes `0` to, between fork and exec, to be inside."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def pids(self) -> List[int]:
        """Every process inside."""
        found: Set[int] = set()
        for door in self.doors:
            text = _read(Path(door)) or ""
            found.update(int(word) for word in text.split())
        return sorted(found)

    def kill(self) -> None:
        """SIGKILL to everything inside, at once where the kernel can (cgroup.kill), else one by one."""
        for folder in self.folders:
            if self.version == 2 and _write(folder / "cgroup.kill", "1"):
                return
        for pid in self.pids():
            process.send(pid, signal.SIGKILL)

    def oom_kills(self) -> int:
        """How many processes inside the kernel has killed for the memory limit."""
        folder = self._folders.get("memory") or self._folders.get("unified")
        if folder is None or not self.holds_memory:
            return 0
        text = _read(folder / ("memory.events" if self.version == 2 else "memory.oom_control")) or ""
        counts = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) == 2)
        return int(counts.get("oom_kill", 0))

    def remove(self) -> bool:
        """Takes the group away; False when something still lives inside."""
        until = time.monotonic() + _REMOVE_FOR
        while True:
            removed = [_rmdir(folder) for folder in self.folders]
            if all(removed):
                return True
            if self.pids() or time.monotonic() >= until:
                return False
            time.sleep(0.005)


def make(
    name: str, *, memory: Optional[int] = None, cpu: Optional[float] = None, quota: bool = False
) -> Optional[Cgroup]:
    """A group called `name` below our own: `memory` bytes at most, `cpu` cores as a weight, or as a hard quota.

    An existing one of that name is taken over. None where no hierarchy is writable; see `holds_memory`, `holds_cpu`.
    """
    parents = _parents()
    return _make_v1(name, parents, memory, cpu, quota) or _make_v2(name, parents, memory, cpu, quota)


def _make_v2(
    name: str, parents: Dict[str, Path], memory: Optional[int], cpu: Optional[float], quota: bool
) -> Optional[Cgroup]:
    parent = parents.get("unified")
    if parent is None:
        return None
    wanted = [word for word, asked in (("memory", memory), ("cpu", cpu)) if asked is not None]
    for controller in wanted:
        # Refused while the parent itself holds processes; the group still serves to find and kill what is inside.
        _write(parent / "cgroup.subtree_control", f"+{controller}")
    folder = parent / name
    if not _mkdir(folder):
        return None
    group = Cgroup({"unified": folder}, 2)
    if memory is not None and _write(folder / "memory.max", str(memory)):
        group.holds_memory = True
        _write(folder / "memory.swap.max", "0")
    if cpu is not None:
        group.holds_cpu = _write(folder / "cpu.weight", str(_clamp(round(cpu * 100), 1, 10_000)))
        if quota:
            group.holds_cpu = _write(folder / "cpu.max", f"{_quota_us(cpu)} {_PERIOD_US}")
    return group


def _make_v1(
    name: str, parents: Dict[str, Path], memory: Optional[int], cpu: Optional[float], quota: bool
) -> Optional[Cgroup]:
    wanted = [word for word, asked in (("memory", memory), ("cpu", cpu)) if asked is not None]
    folders = {}
    for controller in wanted:
        folder = parents[controller] / name if controller in parents else None
        if folder is not None and _mkdir(folder):
            folders[controller] = folder
    if not folders:
        return None
    group = Cgroup(folders, 1)
    if "memory" in folders:
        group.holds_memory = _write(folders["memory"] / "memory.limit_in_bytes", str(memory))
        # Swap is accounted only on some kernels; without it the plain limit stands.
        _write(folders["memory"] / "memory.memsw.limit_in_bytes", str(memory))
    if "cpu" in folders and cpu is not None:
        group.holds_cpu = _write(folders["cpu"] / "cpu.shares", str(_clamp(round(cpu * 1024), 2, 262_144)))
        if quota:
            _write(folders["cpu"] / "cpu.cfs_period_us", str(_PERIOD_US))
            group.holds_cpu = _write(folders["cpu"] / "cpu.cfs_quota_us", str(_quota_us(cpu)))
    return group


def _parents() -> Dict[str, Path]:
    """The folder of our own group in each hierarchy: {"unified": …, "memory": …, "cpu": …}."""
    mounts = _mounts()
    found = {}
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        number, controllers, path = _three(line)
        for name in ["unified"] if number == "0" and not controllers else controllers.split(","):
            if name in mounts:
                root, point = mounts[name]
                # In a container the mount may begin below the real root, and our path is then told from the real one.
                inside = path[len(root) :] if root != "/" and path.startswith(root) else path
                found[name] = point / inside.lstrip("/")
    return found


def _mounts() -> Dict[str, Tuple[str, Path]]:
    """For each hierarchy: which of its folders is mounted, and where."""
    found: Dict[str, Tuple[str, Path]] = {}
    for line in (_read(Path("/proc/self/mountinfo")) or "").splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        for name in ["unified"] if kind[0] == "cgroup2" else kind[2].split(","):
            found.setdefault(name, (words[3], Path(words[4])))
    return found


def _three(line: str) -> Tuple[str, str, str]:
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    return number, controllers, path


def _quota_us(cpu: float) -> int:
    return max(_LEAST_QUOTA_US, round(cpu * _PERIOD_US))


def _clamp(number: int, least: int, most: int) -> int:
    return max(least, min(most, number))


def _read(path: Path) -> Optional[str]:
    try:
        return path.read_text()
    except OSError:
        return None


def _write(path: Path, text: str) -> bool:
    """Whether the kernel took it. Not created: a file that is not there is a thing this kernel cannot do."""
    try:
        handle = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(handle, text.encode())
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _mkdir(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
