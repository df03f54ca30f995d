"""The tables of a server on disk, written by themselves every so often: what a lost machine's tables come back from.

A file holds one table of one server with the numbers of the pushes that are in it, so that those are not taken again.
Its name tells the attempt: another one begins from a checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from shoal.train.checkpoint import tensors
from shoal.train.checkpoint.disk import Facts
from shoal.train.errors import BadCheckpoint
from shoal.train.ps import snapshot
from shoal.train.ps.rows import Rows

SEQS = "seqs"  # worker, last push; a row each

_log = logging.getLogger("shoal.train")


Frozen = Callable[[Mapping[str, int]], Iterable[tuple[str, int, Mapping[str, Tensor]]]]


class TableSnapshots:
    """Of one server. `frozen` is given the versions that are on disk, and gives the tables that have another: name,
    version, what is kept."""

    def __init__(self, folder: Path, server: str, attempt: str, every: float) -> None:
        self._folder, self._mark, self._every = folder, f"{server}-{attempt}", every
        self._frozen: Frozen = lambda written: ()
        self._written: dict[str, int] = {}  # the version of each table on disk
        self._thread = threading.Thread(target=self._run, name="shoal-table-snapshots", daemon=True)

    def start(self, frozen: Frozen) -> None:
        self._frozen = frozen
        if self._every:
            self._thread.start()

    def take(self) -> None:
        """Now. A disk that fails costs the snapshot, not the training."""
        try:
            for name, version, found in self._frozen(self._written):
                write_part(self._path(name), found)
                self._written[name] = version
        except OSError as failed:
            _log.warning("no snapshot of the tables this time: %s", failed)

    def restore(self, rows: Rows) -> bool:
        """Fills an empty table with what this attempt had written of it; whether there was anything."""
        path = self._path(rows.info.name)
        if not self._every or rows.version or rows.used or not path.exists():
            return False
        try:
            found = tensors.read(path)
        except (BadCheckpoint, OSError) as wrong:
            _log.warning("the snapshot of table %s cannot be used: %s", rows.info.name, wrong)
            return False
        rows.take([found])
        rows.note({int(worker): int(seq) for worker, seq in found[SEQS].tolist()})
        _log.warning("table %s comes back from the snapshot at version %d", rows.info.name, rows.version)
        return True

    def _path(self, table: str) -> Path:
        return self._folder / f"table-{table}-{self._mark}{tensors.SUFFIX}"

    def _run(self) -> None:
        while True:
            time.sleep(self._every)
            self.take()


def with_seqs(rows: Rows) -> dict[str, Tensor]:
    """What is kept of a table, and which pushes are in it."""
    seqs = torch.tensor(sorted(rows.seqs().items()), dtype=torch.int64).reshape(-1, 2)
    return {**rows.export(), SEQS: seqs}


def write_part(file: Path, found: Mapping[str, Tensor]) -> Facts:
    """One server's rows as a file of tensors; whole, or what was there before."""
    layout = tensors.Layout.of(found)
    filled = [found[one.name].contiguous() for one in layout.entries if one.end > one.begin]
    plain = [one.numpy().data.cast("B") for one in filled]
    return snapshot.write(file, [layout.header, *plain])
