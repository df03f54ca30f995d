"""The digests of files read before, so that an unchanged folder of gigabytes is looked at but not read again.

It is only a memory, in one file: lost or damaged, everything is read once more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from shoal._lib.clock import now
from shoal.home import write_private


class FileDigest(NamedTuple):
    path: str
    size: int  # bytes
    digest: str


def file_digest(chunks: Iterable[str]) -> str:
    """SHA-256 of the digests of a file's chunks: the same for the same content, wherever it lies."""
    return sha256("".join(chunks).encode()).hexdigest()


def tree_digest(files: Iterable[FileDigest]) -> str:
    """SHA-256 of paths and contents, in the order of paths; times and modes do not count."""
    lines = (f"{file.path}\0{file.size}\0{file.digest}\n" for file in sorted(files))
    return sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


_FORM = 1

# A file changed this recently may change again within one tick of the file system's clock, with nothing to show for it.
SETTLED_SECONDS = 2.0


class Digests:
    """What is known of one folder's files, by size, times and inode. `keep`: also of those that are not asked for."""

    def __init__(self, file: Path, keep: bool = False) -> None:
        self._file = file
        self._known: dict[str, Any] = _load(file)
        self._kept: dict[str, Any] = dict(self._known) if keep else {}

    def find(self, path: str, status: os.stat_result) -> list[str] | None:
        """The digests of that file if it is the one that was read; None if it must be read."""
        known = self._known.get(path)
        if known is None or known[0] != marks(status):
            return None
        self._kept[path] = known
        digests: list[str] = known[1]
        return digests

    def note(self, path: str, status: os.stat_result, digests: list[str]) -> None:
        if max(status.st_mtime, status.st_ctime) < now() - SETTLED_SECONDS:
            self._kept[path] = [marks(status), digests]

    def save(self) -> None:
        """Keeps what was found or noted since opening; forgets files that are gone."""
        if self._kept == self._known:
            return
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self._file, json.dumps({"form": _FORM, "files": self._kept}, separators=(",", ":")))


def marks(status: os.stat_result) -> list[int]:
    """By what one can tell that a file is still the one that was read."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _load(file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    whole = isinstance(raw, dict) and raw.get("form") == _FORM and isinstance(raw.get("files"), dict)
    return dict(raw["files"]) if whole else {}
