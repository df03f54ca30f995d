"""The state of a server as one file of tensors, written by itself every so often.

A file holds the dumps of some spaces; a dump names its layout, so another number of servers can read it. Training
waits for the copy to memory only, the rest is written beside it. A snapshot is good for the attempt that wrote it:
another one begins from a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.train.checkpoint import tensors
from shoal.train.checkpoint.disk import Disk, Facts
from shoal.train.errors import BadCheckpoint
from shoal.train.ps.place import Place
from shoal.train.ps.shard import Dump

NOTE = "shoal.ps"  # the key of our own note in the header

_log = logging.getLogger("shoal.train")


def pack(dumps: Mapping[str, Dump], attempt: str) -> list[memoryview]:
    """The content of a file, in pieces that are not copied."""
    named: dict[str, Tensor] = {
        f"{space}/{name}": tensor for space, dump in dumps.items() for name, tensor in dump.tensors.items()
    }
    note = {"attempt": attempt, "spaces": {space: dump.meta for space, dump in dumps.items()}}
    layout = tensors.Layout.of(named, {NOTE: json.dumps(note)})
    data = [named[one.name].numpy().data.cast("B") for one in layout.entries if one.end > one.begin]
    return [memoryview(layout.header), *data]


def unpack(path: Path) -> tuple[str, dict[str, Dump]]:
    """The attempt that wrote a file, and the dumps by space, mapped into memory. BadCheckpoint for another file."""
    found = tensors.read(path)
    note = _note(path)
    dumps = {}
    for space, meta in note["spaces"].items():
        own = {name[len(space) + 1 :]: one for name, one in found.items() if name.startswith(f"{space}/")}
        dumps[space] = Dump(meta, own)
    return str(note["attempt"]), dumps


def write(path: Path, pieces: Iterable[memoryview | bytes]) -> Facts:
    """All of it under this name, or what was there before."""
    disk = Disk()
    disk.make(path.parent)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        facts = disk.write(beside, pieces)
        disk.rename(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return facts


def attempt_of(place: Place) -> str:
    """A mark of the attempt that does not tell its secret."""
    return hashlib.sha256(b"attempt " + place.secret).hexdigest()[:16]


class Snapshots:
    """Writes what `freeze` gives every so often, in a thread of its own, until it is closed; and once more then."""

    def __init__(
        self, place: Place, changes: Callable[[], dict[str, int]], freeze: Callable[[], dict[str, Dump]]
    ) -> None:
        """`changes` counts what has happened to each space, so that nothing is written twice."""
        self.path = place.snapshots / f"{place.name}{tensors.SUFFIX}"
        self.every = float(place.strategy.options.get("snapshot", 0.0))
        self.versions: dict[str, int] = {}  # of the last one
        self.taken_at = 0.0
        self._attempt, self._name, self._changes, self._freeze = attempt_of(place), place.name, changes, freeze
        self._written: dict[str, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-snapshots", daemon=True)

    def start(self) -> None:
        if self.every:
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def take(self) -> None:
        """One now, unless nothing has changed. A disk that fails costs the snapshot, not the training."""
        try:
            changes = self._changes()
            dumps = self._freeze() if changes != self._written else {}
            if dumps:
                write(self.path, pack(dumps, self._attempt))
                self.versions = {space: int(dump.meta["version"]) for space, dump in dumps.items()}
                self._written, self.taken_at = changes, time.time()
        except Exception as failed:
            _log.warning("%s: no snapshot this time: %s", self._name, failed)

    def find(self, space: str) -> Dump | None:
        """What this attempt had written of a space before this process came."""
        if not self.every or not self.path.exists():
            return None
        try:
            attempt, dumps = unpack(self.path)
        except (BadCheckpoint, OSError) as wrong:
            _log.warning("%s: the snapshot cannot be used: %s", self._name, wrong)
            return None
        return dumps.get(space) if attempt == self._attempt else None

    def _run(self) -> None:
        while not self._closing.wait(self.every):
            self.take()
        self.take()


def _note(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        header = file.read(int.from_bytes(file.read(8), "little"))
    try:
        note = json.loads(json.loads(header)["__metadata__"][NOTE])
        return {"attempt": note["attempt"], "spaces": dict(note["spaces"])}
    except (ValueError, KeyError, TypeError) as wrong:
        raise BadCheckpoint(f"{path} holds no server's state; load a folder that servers saved to") from wrong


def newest(dumps: Iterable[tuple[str, Dump | None]]) -> tuple[str, Dump] | None:
    """The one of the highest version, with its label; the first of equals."""
    there = [(label, dump) for label, dump in dumps if dump is not None]
    return max(there, key=lambda one: int(one[1].meta["version"])) if there else None
