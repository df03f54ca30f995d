"""The peer of PyTorch jobs: `torchrun` of this interpreter, run as a process of its own."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import MissingExtra, StartFailed

LIMIT = 120.0  # seconds


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("bench", "torchrun", "torch", "torch")


def first_line_ms(script: Path) -> float:
    """From the start of torchrun to the first line of the script."""
    began = time.perf_counter()
    with _start(script, ()) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        taken = time.perf_counter() - began
        running.communicate(timeout=LIMIT)
    if not line or running.returncode:
        raise StartFailed(f"torchrun ended with code {running.returncode} for {script}; run it by hand to see why")
    return taken * 1000


def output(script: Path, arguments: Sequence[str]) -> str:
    with _start(script, arguments) as running:
        text, _ = running.communicate(timeout=LIMIT)
    if running.returncode:
        raise StartFailed(f"torchrun ended with code {running.returncode} for {script}; run it by hand to see why")
    return text


def _start(script: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
    """What the `torchrun` command does, by the name of its module: the command itself may not be on the path.

    With a free port of its own instead of 29500, which another torchrun on this machine may hold.
    """
    options = ["--nproc-per-node", "2", "--master-port", str(_free_port())]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, str(script), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=script.parent,
        text=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
