"""One checkpoint of several workers: who writes into the same folder, and whether all parts are there."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shoal.train.checkpoint import parts
from shoal.train.checkpoint.disk import Disk, Facts
from shoal.train.errors import WaitedTooLong
from shoal.train.group.api import Group

PAUSE = 0.02  # seconds between two looks for the parts of others
PATIENCE = 120.0  # seconds without a byte more, after which a part counts as missing


def find(folder: Path, group: Group, rank: int, disk: Disk) -> tuple[int, ...]:
    """The workers whose folder is this very one, in order: each leaves a note and looks for those of the others."""
    disk.make(folder)
    note = folder / f".here-{rank}-{secrets.token_hex(8)}"
    note.touch()
    try:
        notes = group.gather([rank, note.name])
        seen = tuple(sorted(int(other) for other, name in notes if (folder / str(name)).exists()))
        group.gather(0)  # nobody takes its note away before everyone has looked
    finally:
        note.unlink(missing_ok=True)
    return seen


def parts_of(writers: Sequence[int], folder: Path, token: str, abandon: threading.Event) -> dict[str, Facts]:
    """The files of all parts. Ends when they are there, when the run is abandoned, or when nothing has grown for
    PATIENCE: then WaitedTooLong names who is missing."""
    files: dict[str, Facts] = {}
    missing, size, since = list(writers), -1, time.monotonic()
    while missing:
        for rank in list(missing):
            found = parts.written(folder, rank, token)
            if found is not None:
                files.update(found)
                missing.remove(rank)
        now = _size(folder)
        if now != size:
            size, since = now, time.monotonic()
        if missing and (abandon.wait(PAUSE) or time.monotonic() - since > PATIENCE):
            names = [f"worker-{rank}" for rank in missing]
            raise WaitedTooLong(
                f"checkpoint {folder.name} was given up: the parts of {', '.join(names)} did not come; the one before "
                "it is whole",
                names,
            )
    return files


def _size(folder: Path) -> int:
    total = 0
    for one in folder.iterdir():
        with suppress(FileNotFoundError):  # it was just given its name
            total += one.stat().st_size
    return total
