"""What machine this is: name, system, kernel, CPU, memory, GPUs. Small files of the kernel's, read when asked."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Dict, List, Optional

from shoal.shepherd import gpus

_DRIVER = Path("/proc/driver/nvidia/version")


def about() -> Dict[str, Any]:
    """What can be learned; a fact this machine does not tell is left out."""
    names = os.uname()
    facts = {
        "host": socket.gethostname(),
        "system": _after("/etc/os-release", "PRETTY_NAME", "=") or names.sysname,
        "kernel": names.release,
        "machine": names.machine,
        "cpu": _after("/proc/cpuinfo", "model name", ":") or names.machine,
        "cpus": os.cpu_count(),
        "memory": _memory(),
        "gpus": gpus.names() if gpus.available() else [],
        "driver": _driver(),
    }
    return {name: value for name, value in facts.items() if value}


def _after(file: str, name: str, mark: str) -> Optional[str]:
    """The first value of that name in a file of `name MARK value` lines."""
    for line in _lines(Path(file)):
        found, _, value = line.partition(mark)
        if found.strip() == name:
            return value.strip().strip('"')
    return None


def _memory() -> Optional[int]:
    told = _after("/proc/meminfo", "MemTotal", ":")
    return int(told.split()[0]) * 1024 if told else None


def _driver() -> Optional[str]:
    """`NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  …`: the first word that is a version."""
    words: List[str] = (_lines(_DRIVER) or [""])[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _lines(path: Path) -> List[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
