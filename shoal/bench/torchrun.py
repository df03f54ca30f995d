"""The peer of PyTorch jobs: `torchrun` of this interpreter, run as a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoal._lib.ports import free_ports
from shoal.errors import MissingExtra, StartFailed

LIMIT = 120.0  # seconds


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("bench", "torchrun", "torch", "torch")


def first_line_ms(script: Path) -> float:
    """From the start of torchrun to the first line of the script."""
    began = time.perf_counter()
    with _running(script, ()) as running:
        assert running.stdout is not None
        running.stdout.readline()
        taken = time.perf_counter() - began
    return taken * 1000


def output(script: Path, arguments: Sequence[str]) -> str:
    with _running(script, arguments) as running:
        assert running.stdout is not None
        return running.stdout.read()


@contextmanager
def _running(script: Path, arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """What the `torchrun` command does, by the name of its module: the command itself may not be on the path.

    With a free port of its own instead of 29500, which another torchrun on this machine may hold. StartFailed, with
    what it said, when it fails.
    """
    options = ["--nproc-per-node", "2", "--master-port", str(free_ports(1)[0])]
    with tempfile.TemporaryFile("w+") as errors:
        running = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=script.parent,
            text=True,
        )
        try:
            yield running
            running.communicate(timeout=LIMIT)
        finally:
            _end(running)
        if running.returncode:
            errors.seek(0)
            raise StartFailed(f"torchrun ended with code {running.returncode} for {script}:\n{errors.read()[:2000]}")


def _end(running: subprocess.Popen[str]) -> None:
    """Nothing when it has ended; torchrun ends its workers when it is asked to end."""
    if running.poll() is None:
        running.terminate()
        running.wait(LIMIT)
