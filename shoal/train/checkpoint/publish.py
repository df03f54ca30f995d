"""The model for those who use it while it is still trained: a file of weights for each version, and a note that names
the newest. A reader never sees half of one, and the file it has open stays until it is done.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from shoal.train.checkpoint import tensors
from shoal.train.checkpoint.disk import Disk, facts
from shoal.train.checkpoint.staging import Staged, Staging
from shoal.train.checkpoint.writer import Writer
from shoal.train.errors import BadCheckpoint

FOLDER = "published"
LATEST = "latest.json"


@dataclass(frozen=True)
class Published:
    """One version of a model."""

    version: int
    step: int
    file: str
    bytes: int
    sha256: str
    at: float  # seconds since the epoch


class Publisher:
    """Publishes what `weights` gives. Where that is collective every worker has one, and the first one writes."""

    def __init__(
        self,
        folder: Path,
        weights: Callable[[], Mapping[str, Tensor]],
        *,
        writes: bool = True,
        collective: bool = False,
        keep: int = 3,
        disk: Disk | None = None,
    ) -> None:
        self._folder, self._weights, self._keep = folder, weights, max(1, keep)
        self._writes, self._collective = writes, collective
        self._disk, self._staging, self._writer = disk or Disk(), Staging(), Writer("shoal-publish")
        before = latest(folder) if writes else None
        self.version = before.version if before else 0

    def __call__(self, step: int) -> None:
        """The next version, as the model is now. Waits for the copy to host memory, and for the version before."""
        if not self._writes:
            if self._collective:
                self._weights()
            return
        weights = self._weights()
        self._writer.wait()
        self.version += 1
        self._writer.begin(partial(self._write, self._staging.stage("weights", weights), self.version, step))

    def finish(self) -> None:
        """Waits until everything is written, and raises what that met."""
        self._writer.wait()

    def _write(self, staged: Staged, version: int, step: int) -> None:
        disk, name = self._disk, f"v{version:08d}{tensors.SUFFIX}"
        disk.make(self._folder)
        beside = self._folder / f".{name}.{os.getpid()}"
        written = disk.write(beside, staged.pieces())
        disk.rename(beside, self._folder / name)
        note = Published(version, step, name, written.bytes, written.sha256, time.time())
        disk.put(self._folder / LATEST, json.dumps(asdict(note)).encode())
        for old in sorted(self._folder.glob(f"v*{tensors.SUFFIX}"))[: -self._keep]:
            disk.remove(old)


def latest(folder: Path) -> Published | None:
    """What is known of the newest version; None when there is none yet."""
    try:
        return Published(**json.loads((folder / LATEST).read_text()))
    except FileNotFoundError:
        return None


def published(folder: str | Path, newer_than: int = 0) -> tuple[Published, dict[str, Tensor]] | None:
    """The newest version and its weights; None when there is none newer. Ask again to follow a model in training."""
    folder = Path(folder)
    while True:
        note = latest(folder)
        if note is None or note.version <= newer_than:
            return None
        try:
            found = tensors.read(folder / note.file)
            if facts(folder / note.file).sha256 != note.sha256:
                raise BadCheckpoint(f"{folder / note.file} has other content than was published; wait for the next one")
            return note, found
        except FileNotFoundError:
            if latest(folder) == note:  # not replaced by a newer one meanwhile
                raise
