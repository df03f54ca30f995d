"""A folder on this machine as a tar stream: regular files only, never through a link, a piece in memory at a time."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from shoal import errors
from shoal.storage.folders import open_inside

_PIECE = 1 << 20
_BLOCK = 512


def tar_folder(root: Path, path: str) -> Iterator[bytes]:
    """What lies at `path` below `root`; a single file keeps its name. errors.NotFound before the first byte."""
    names = list(plain_files(root, path))
    if not names:
        raise errors.NotFound(f"there is nothing at {path!r}; list the folder to see what there is", path=path)
    return _stream(root, names, path.strip("/"))


def plain_files(root: Path, path: str = "") -> Iterator[str]:
    """Paths, relative to `root`, of the files at or below `path`; links are passed over, they could lead anywhere."""
    inside = path.strip("/")
    top = root / inside
    if os.path.realpath(top) != os.path.normpath(Path(os.path.realpath(root), inside)):
        return
    if top.is_file():
        yield inside
        return
    for folder, _, names in os.walk(top, followlinks=False):
        for name in sorted(names):
            file = Path(folder) / name
            if file.is_file() and not file.is_symlink():
                yield file.relative_to(root).as_posix()


def _stream(root: Path, names: list[str], base: str) -> Iterator[bytes]:
    for name in names:
        inner = name.rsplit("/", 1)[-1] if name == base else name.removeprefix(base).lstrip("/")
        with open_inside(root, name) as source:
            status = os.fstat(source.fileno())
            yield _header(inner, status)
            yield from _content(source.fileno(), status.st_size)
    yield bytes(2 * _BLOCK)


def _header(name: str, status: os.stat_result) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = status.st_size, status.st_mode & 0o777, int(status.st_mtime)
    return member.tobuf(tarfile.PAX_FORMAT)


def _content(handle: int, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes, whatever happens to the file meanwhile: the header has promised them."""
    left = size
    while left:
        piece = os.read(handle, min(_PIECE, left)) or bytes(min(_PIECE, left))
        left -= len(piece)
        yield piece
    if size % _BLOCK:
        yield bytes(_BLOCK - size % _BLOCK)
