"""The checkpoints of one folder: which are whole, which is newest, which may go.

A checkpoint is a folder with a part of each writer and, written last, a `manifest.json` that names every file with its
size and SHA-256. Without a manifest it is torn, whatever else is there. Removing begins with the manifest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.train.checkpoint.disk import Disk, Facts, facts
from shoal.train.errors import BadCheckpoint

FORMAT = 1
MANIFEST = "manifest.json"

_NAME = re.compile(r"(epoch|step)-\d+(\.\d+)?")

_log = logging.getLogger("shoal.train")


@dataclass(frozen=True)
class Manifest:
    """What is known of a checkpoint before it is opened."""

    name: str
    serial: int  # grows from one checkpoint to the next
    token: str  # of this very save: a part that was left by another does not count
    tag: Any = None  # what the script called it
    epoch: int = 0  # the one to go on with
    step: int = 0
    best: float | None = None  # the metric it was saved with; more is better
    strategy: str = ""
    size: int = 1  # workers
    created: float = 0.0
    gang: str = ""  # the attempt that it was written in
    files: Mapping[str, Facts] = field(default_factory=dict)  # everything but the manifest itself
    format: int = FORMAT

    def to_json(self) -> str:
        raw = asdict(self)
        return json.dumps({**raw, "check": _check_of(raw)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """ValueError when it is not what was written."""
        raw = json.loads(text)
        if raw.pop("check") != _check_of(raw):
            raise ValueError("its content has changed")
        return cls(**{**raw, "files": {name: Facts(**one) for name, one in raw["files"].items()}})


def _check_of(raw: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()


class Chain:
    """The checkpoints in a folder that one committer writes. Readers may come at any time."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self.disk = disk or Disk()

    def whole(self, quiet: bool = False) -> list[Manifest]:
        """All that have a manifest, newest first. A torn one is skipped, with a line in the log unless `quiet`."""
        found = []
        for folder in self._folders():
            try:
                manifest = Manifest.from_json((folder / MANIFEST).read_text())
                if manifest.format > FORMAT:
                    raise ValueError(f"its format {manifest.format} is newer than this version of Shoal")
                found.append(manifest)
            except FileNotFoundError:
                why = "it was never finished"
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
                why = f"its manifest cannot be read ({wrong})"
            else:
                continue
            if not quiet:
                _log.warning("checkpoint %s is skipped: %s", folder, why)
        return sorted(found, key=lambda one: -one.serial)

    def free_name(self, wanted: str) -> str:
        """The name, with a number behind it when it is taken."""
        name, number = wanted, 1
        while (self.folder / name).exists():
            number += 1
            name = f"{wanted}.{number}"
        return name

    def commit(self, manifest: Manifest) -> None:
        """The files are there; from now on it is whole."""
        self.disk.put(self.folder / manifest.name / MANIFEST, manifest.to_json().encode())

    def prune(self, keep: int | None) -> None:
        """Removes all but the last `keep` and the best, and what was left torn. None keeps everything whole."""
        whole = self.whole(quiet=True)
        kept = {one.name for one in (whole if keep is None else whole[: max(1, keep)])}
        best = max((one for one in whole if one.best is not None), key=_goodness, default=None)
        if best is not None:
            kept.add(best.name)
        for folder in self._folders():
            if folder.name not in kept:
                self.disk.remove(folder / MANIFEST)
                self.disk.remove(folder)

    def _folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(one for one in self.folder.iterdir() if _NAME.fullmatch(one.name) and one.is_dir())


def _goodness(manifest: Manifest) -> tuple[float, int]:
    assert manifest.best is not None
    return manifest.best, manifest.serial


def check(folder: Path, manifest: Manifest, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """Reads the wanted files and compares them with the manifest; BadCheckpoint names the first that differs."""
    for name, should in manifest.files.items():
        if not wanted(name):
            continue
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError as missing:
            raise BadCheckpoint(f"{path} is missing from the checkpoint; take an earlier one") from missing
        if size != should.bytes:
            raise BadCheckpoint(f"{path} has {size} bytes and should have {should.bytes}; take an earlier checkpoint")
        if facts(path) != should:
            raise BadCheckpoint(f"{path} has other content than was written (SHA-256); take an earlier checkpoint")


def digest(content: bytes) -> Facts:
    return Facts(len(content), hashlib.sha256(content).hexdigest())
