"""Files that others put into a checkpoint: servers write their own state, because it need not fit into a worker.

While a `state()` runs, `folder()` is the folder of the checkpoint that is being written, and `wrote` lists a file
there, so that the manifest vouches for it: without that the file is not part of the checkpoint. While a `load()` runs,
`folder()` is the folder that is being read; every listed file in it has been checked by then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shoal.train.checkpoint.disk import Facts
from shoal.train.errors import TrainError


@dataclass
class Beside:
    """One save or load under way in this process."""

    folder: Path
    files: dict[str, Facts] = field(default_factory=dict)


class _Now(threading.local):
    def __init__(self) -> None:
        self.every: list[Beside] = []


_now = _Now()


def folder() -> Path:
    """Where the checkpoint lies that is being saved or loaded."""
    return _at_work().folder


def wrote(file: str, size: int, sha256: str) -> None:
    """A file of this name is in the folder, synced, and belongs to the checkpoint."""
    _at_work().files[file] = Facts(size, sha256)


@contextmanager
def at(folder: Path) -> Iterator[Beside]:
    _now.every.append(Beside(folder))
    try:
        yield _now.every[-1]
    finally:
        _now.every.pop()


def _at_work() -> Beside:
    if not _now.every:
        raise TrainError("no checkpoint is being saved or loaded: ask for its folder in state() or load()")
    return _now.every[-1]
