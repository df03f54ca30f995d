"""What a process uses, from the kernel: CPU seconds and resident memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_KIB = 1024
MB = 1_000_000


def cpu_seconds(pid: int) -> float:
    """User and system time of the process itself, all its threads, without its children."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICK


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * _KIB / MB
    raise ProcessLookupError(f"process {pid} has no memory any more")


class CpuMeter:
    """How many cores a process used since the meter was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu = cpu_seconds(pid)
        self._at = time.monotonic()

    def cores(self) -> float:
        return (cpu_seconds(self._pid) - self._cpu) / (time.monotonic() - self._at)
