"""Named, immutable-once-written byte strings: the one interface behind code chunks, pools and outputs.

A blob is there whole or not at all. What the names mean is the business of those who choose them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from shoal import errors
from shoal._lib.ids import short_id

MAX_KEY = 1024  # characters; object stores allow no more
_PART = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9._@+-]{0,254}")
_UNFINISHED = "tmp"


class Blobs(Protocol):
    """A place for blobs. Keys are relative paths of plain names; a wrong one is errors.BadSpec.

    Every method may be called from several threads and processes at once.
    """

    def put(self, key: str, data: bytes | Iterable[bytes]) -> int:
        """Stores the bytes and returns their number, once they are safe; replaces what was there. A failure, also
        one raised by the iterator, leaves what was there before."""
        ...

    def open(self, key: str) -> BinaryIO:
        """The bytes, seekable; stays readable when the blob is deleted meanwhile. errors.NotFound."""
        ...

    def exists(self, key: str) -> bool: ...

    def size(self, key: str) -> int:
        """In bytes. errors.NotFound."""
        ...

    def delete(self, key: str) -> None:
        """Harmless when it is not there."""
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """The keys that begin with `prefix`, in order."""
        ...


class FolderBlobs:
    """Blobs as files under one folder."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._tmp = self._root / _UNFINISHED
        self._tmp.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, key: str, data: bytes | Iterable[bytes]) -> int:
        path = self._path(key)
        unfinished = self._tmp / short_id(20)
        try:
            size = _write(unfinished, data)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return size

    def open(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except (FileNotFoundError, IsADirectoryError):
            raise _no_blob(key) from None

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def size(self, key: str) -> int:
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            raise _no_blob(key) from None

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def list(self, prefix: str = "") -> Iterator[str]:
        folder = prefix.rpartition("/")[0]
        top = self._path(folder) if folder else self._root
        keys = (path.relative_to(self._root).as_posix() for path in top.rglob("*") if path.is_file())
        yield from sorted(key for key in keys if key.startswith(prefix) and not key.startswith(f"{_UNFINISHED}/"))

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if len(key) > MAX_KEY or parts[0] == _UNFINISHED or not all(map(_PART.fullmatch, parts)):
            raise errors.BadSpec(
                f"{key[:100]!r} cannot name a blob; use plain names of letters, digits and ._@+- joined by /",
                key=key[:100],
            )
        return self._root.joinpath(*parts)


def _write(path: Path, data: bytes | Iterable[bytes]) -> int:
    size = 0
    with path.open("xb", buffering=0) as file:
        for piece in (data,) if isinstance(data, bytes) else data:
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
            size += len(piece)
        os.fsync(file.fileno())
    return size


def _no_blob(key: str) -> errors.NotFound:
    return errors.NotFound(f"there is no blob {key!r}; it was deleted or never stored", key=key)
