"""Writing so that it lasts: bytes reach the disk before the name that vouches for them does.

Every touch of the disk is announced to `step` first. That is where a test kills the writer, once at each.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PIECE = 8 << 20  # bytes written and hashed at a time


@dataclass(frozen=True)
class Facts:
    """What a file must be when it is read again."""

    bytes: int
    sha256: str


class Disk:
    """The few things a checkpoint does to a file system."""

    def step(self, what: str, path: Path) -> None:
        """Called before anything is touched."""

    def make(self, folder: Path) -> None:
        """The folder with its parents; harmless when it is there."""
        if folder.is_dir():
            return
        self.make(folder.parent)
        self.step("make", folder)
        with suppress(FileExistsError):
            folder.mkdir()
        self._sync_folder(folder.parent)

    def write(self, path: Path, pieces: Iterable[memoryview | bytes]) -> Facts:
        """A file with this content, on the disk. Until it returns, the file may be half there."""
        digest, size = hashlib.sha256(), 0
        self.step("open", path)
        with open(path, "wb", buffering=0) as file:
            for piece in pieces:
                view = memoryview(piece).cast("B")
                for begin in range(0, len(view), PIECE):
                    part = view[begin : begin + PIECE]
                    self.step("write", path)
                    _write_all(file.fileno(), part)
                    digest.update(part)
                    size += len(part)
            self.step("sync", path)
            os.fsync(file.fileno())
        return Facts(size, digest.hexdigest())

    def put(self, path: Path, content: bytes) -> Facts:
        """The file with all of this content, or as it was before."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        facts = self.write(beside, [content])
        self.step("rename", path)
        beside.replace(path)
        self._sync_folder(path.parent)
        return facts

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", new)
        old.replace(new)
        self._sync_folder(new.parent)

    def remove(self, path: Path) -> None:
        """A file or a whole folder; harmless when it is gone."""
        self.step("remove", path)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _sync_folder(self, folder: Path) -> None:
        self.step("sync", folder)
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def facts(path: Path) -> Facts:
    """Of a file as it is now."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(PIECE)
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            size += count
    return Facts(size, digest.hexdigest())


def _write_all(number: int, part: memoryview) -> None:
    while part:
        part = part[os.write(number, part) :]
