"""What the node's GPUs do, from nvidia-smi where there is one; nothing elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List, Optional

from shoal.contract import MEMBER

_QUERY = ("--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
_MIB = 1024 * 1024
_TIMEOUT = 10.0  # seconds; a driver that initialises is slow


def available() -> bool:
    return Path("/dev/nvidiactl").exists() and _program() is not None


def read() -> List[Dict[str, float]]:
    """One record per GPU: index, utilization in percent, memory in bytes; empty when the tool fails."""
    import subprocess  # here, because only a node with GPUs needs it

    program = _program()
    if program is None:
        return []
    try:
        done = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [record for record in map(_record, done.stdout.splitlines()) if record]


def names() -> List[str]:
    """The product of each GPU; empty when the tool fails."""
    import subprocess

    program = _program()
    if program is None:
        return []
    # Marked as ours, so that nobody takes it for something that a rank left behind.
    marked = {**os.environ, MEMBER: "gpus"}
    asked = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=marked)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _record(line: str) -> Optional[Dict[str, float]]:
    try:
        index, utilization, used, total = [float(word) for word in line.split(",")]
    except ValueError:  # "[N/A]" where a card does not tell
        return None
    return {"index": int(index), "utilization": utilization, "memory_used": used * _MIB, "memory_total": total * _MIB}


def _program() -> Optional[str]:
    candidates = (f"{folder}/nvidia-smi" for folder in os.environ.get("PATH", os.defpath).split(os.pathsep))
    return next((each for each in candidates if os.access(each, os.X_OK)), None)
