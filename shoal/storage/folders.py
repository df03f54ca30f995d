"""A look into a folder that someone else writes: a job's work folder, for `shoal get`.

The job may place any link there at any moment, so nothing is opened by its path: the path is resolved, checked to lie
inside, and then walked part by part without following links. Links to files inside are served as those files.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shoal import errors

_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a listing; `path` is relative to the root. `link` is the target of a link that is not served."""

    path: str
    size: int  # bytes; 0 for a folder
    mtime: float
    dir: bool
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    items: tuple[Item, ...]
    next: str | None  # the cursor of the next page


def list_folder(root: str | Path, path: str = "", cursor: str | None = None, limit: int = 500) -> Page:
    """The items of one folder by name, at most `limit`, after the cursor. errors.NotFound unless a folder inside."""
    with _opened(root, path, os.O_DIRECTORY) as handle:
        with os.scandir(handle) as entries:
            found = [(_shown(entry.name), entry) for entry in entries]
            after = [pair for pair in found if cursor is None or pair[0] > cursor]
            chosen = heapq.nsmallest(limit + 1, after, key=lambda pair: pair[0])
            items = [_item(root, path, handle, name, entry) for name, entry in chosen[:limit]]
    kept = tuple(item for item in items if item is not None)
    return Page(kept, chosen[limit - 1][0] if len(chosen) > limit else None)


def open_inside(root: str | Path, path: str) -> BinaryIO:
    """The regular file at `path`, opened; errors.NotFound for anything else, and for all that lies outside the root."""
    with _opened(root, path, os.O_NONBLOCK) as handle:  # non-blocking: a pipe placed there must not hold us up
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _nothing(path)
        return os.fdopen(os.dup(handle), "rb")


def folder_size(root: str | Path) -> int:
    """Bytes of the regular files below, links not followed; 0 when there is no such folder."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                found = os.lstat(Path(folder, name))
            except FileNotFoundError:  # the job is still writing and has just removed it
                continue
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


@contextmanager
def _opened(root: str | Path, path: str, flags: int) -> Iterator[int]:
    parts = _inside(root, path)
    try:
        handle = os.open(os.path.realpath(root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise _nothing(path) from None
    try:
        for number, part in enumerate(parts):
            wanted = flags if number == len(parts) - 1 else os.O_DIRECTORY
            below = _step(handle, part, wanted, path)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def _step(handle: int, part: str, flags: int, path: str) -> int:
    try:
        return os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=handle)
    except OSError:  # gone, not a folder, or a link that took its place after we resolved it
        raise _nothing(path) from None


def _inside(root: str | Path, path: str) -> tuple[str, ...]:
    """The parts below the root that the path means once every link in it is followed."""
    if "\0" in path or len(path) > 4096 or not _encodable(path):
        raise _nothing(path)
    top = Path(os.path.realpath(root))
    wanted = Path(root, path.strip("/"))
    real = Path(os.path.realpath(wanted if os.path.lexists(wanted) else Path(root, _unshown(path).strip("/"))))
    if not real.is_relative_to(top):
        raise _nothing(path)
    return real.relative_to(top).parts


def _item(root: str | Path, folder: str, handle: int, name: str, entry: os.DirEntry[str]) -> Item | None:
    path = f"{folder.strip('/')}/{name}".lstrip("/")
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # the job has just removed it
        return None
    if stat.S_ISLNK(found.st_mode):
        return _linked(root, path, handle, entry.name)
    is_dir = stat.S_ISDIR(found.st_mode)
    return Item(path, 0 if is_dir else found.st_size, found.st_mtime, is_dir)


def _linked(root: str | Path, path: str, handle: int, name: str) -> Item | None:
    try:
        with open_inside(root, path) as file:
            found = os.fstat(file.fileno())
            return Item(path, found.st_size, found.st_mtime, dir=False)
    except errors.NotFound:
        return _unserved(path, handle, name)


def _unserved(path: str, handle: int, name: str) -> Item | None:
    try:
        target = os.readlink(name, dir_fd=handle)
        found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except OSError:  # the job has just replaced it
        return None
    return Item(path, 0, found.st_mtime, dir=False, link=_shown(target))


def _encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _shown(name: str) -> str:
    """A name as text that JSON can carry: bytes that are not UTF-8 as \\xNN."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _unshown(path: str) -> str:
    raw = _ESCAPED.sub(lambda match: bytes.fromhex(match.group(1).decode()), os.fsencode(path))
    return os.fsdecode(raw)


def _nothing(path: str) -> errors.NotFound:
    return errors.NotFound(
        f"there is no {path[:200]!r} in the job's folder; list the folder to see what there is", path=path[:200]
    )
