"""A disk that is really full: a small file system in memory, mounted for the time of a test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Path]:
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"needs to mount a small disk: sudo make test ({mounted.stderr.strip()})")
    assert mounted.returncode == 0, mounted.stderr
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def filled(folder: Path, leave: int = 0) -> Iterator[None]:
    """Takes all room that is left but `leave` bytes, and gives it back."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 << 10))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - leave))
    try:
        yield
    finally:
        filler.unlink()
