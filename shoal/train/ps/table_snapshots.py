"""The tables of a server on disk, written by themselves every so often: what a lost machine's tables come back from.

A file holds one table of one server with the numbers of the pushes that are in it, so that those are not taken again.
Its name tells the attempt: another one begins from a checkpoint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from shoal.train.checkpoint import tensors
from shoal.train.checkpoint.disk import Disk, Facts
from shoal.train.errors import BadCheckpoint
from shoal.train.ps.rows import Rows

SEQS = "seqs"  # worker, last push; a row each

_log = logging.getLogger("shoal.train")


class TableSnapshots:
    """Of one server. `frozen` gives the tables that have changed since they were last given, each with its rows."""

    def __init__(self, folder: Path, server: str, attempt: str, every: float) -> None:
        self._folder, self._mark, self._every = folder, f"{server}-{attempt}", every
        self._frozen: Callable[[], Mapping[str, Mapping[str, Tensor]]] = dict
        self._thread = threading.Thread(target=self._run, name="shoal-table-snapshots", daemon=True)

    def start(self, frozen: Callable[[], Mapping[str, Mapping[str, Tensor]]]) -> None:
        self._frozen = frozen
        if self._every:
            self._thread.start()

    def take(self) -> None:
        """Now. A disk that fails costs the snapshot, not the training."""
        try:
            for name, found in self._frozen().items():
                write_part(self._path(name), found)
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
        pause = threading.Event()
        while not pause.wait(self._every):
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
    disk, beside = Disk(), file.with_name(f".{file.name}")
    disk.make(file.parent)
    facts = disk.write(beside, [layout.header, *plain])
    disk.rename(beside, file)
    return facts
