"""The digests of files read before, so that an unchanged folder of gigabytes is looked at but not read again.

One file per folder under SHOAL_CACHE. It is only a memory: lost or damaged, everything is read once more.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from shoal._lib.clock import now
from shoal.home import cache_folder, write_private

_FORM = 1

# A file changed this recently may change again within one tick of the file system's clock, with nothing to show for it.
SETTLED_SECONDS = 2.0


class Digests:
    """What is known of one folder's files, by size, times and inode."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, Any] = _load(file)
        self._kept: dict[str, Any] = {}

    @classmethod
    def of(cls, root: Path) -> Digests:
        name = sha256(os.fsencode(root)).hexdigest()[:32]
        return cls(cache_folder() / "digests" / f"{name}.json")

    def find(self, path: str, status: os.stat_result) -> list[str] | None:
        """The digests of that file if it is the one that was read; None if it must be read."""
        known = self._known.get(path)
        if known is None or known[0] != _marks(status):
            return None
        self._kept[path] = known
        digests: list[str] = known[1]
        return digests

    def note(self, path: str, status: os.stat_result, digests: list[str]) -> None:
        if max(status.st_mtime, status.st_ctime) < now() - SETTLED_SECONDS:
            self._kept[path] = [_marks(status), digests]

    def save(self) -> None:
        """Keeps what was found or noted since opening; forgets files that are gone."""
        if self._kept == self._known:
            return
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self._file, json.dumps({"form": _FORM, "files": self._kept}, separators=(",", ":")))


def _marks(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _load(file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    whole = isinstance(raw, dict) and raw.get("form") == _FORM and isinstance(raw.get("files"), dict)
    return dict(raw["files"]) if whole else {}
