"""What this machine lets us use: cores and memory, as small as the control group we live in makes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def cpus(proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Cores this process may run on, or its group's quota when that is less."""
    quotas = [quota for folder in _groups("cpu", proc, cgroups) if (quota := _quota(folder)) is not None]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes of the machine, or of the tightest limit above this process when that is less."""
    limits = [limit for folder in _groups("memory", proc, cgroups) if (limit := _limit(folder)) is not None]
    return min([_total(proc / "meminfo"), *limits])


def _groups(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of our own group and of all above it, in the unified hierarchy and in the controller's own.

    Inside a container the path may be told from the host's root, where it does not exist; the topmost folder is then
    the container's own group, and the walk ends there in any case.
    """
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controller if controllers else cgroups
        own = root / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        for text in _lines(folder / name):
            return int(text) if text.isdigit() else None
    return None


def _quota(folder: Path) -> float | None:
    words = [word for text in _lines(folder / "cpu.max") for word in text.split()]
    if not words:
        words = [*_lines(folder / "cpu.cfs_quota_us"), *_lines(folder / "cpu.cfs_period_us")]
    if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    return None


def _total(meminfo: Path) -> int:
    for line in _lines(meminfo):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _lines(path: Path) -> list[str]:
    """The lines of a file of the kernel's; none where this kernel has no such file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
