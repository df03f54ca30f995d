"""A folder on this machine as a tar stream: regular files only, never through a link, a piece in memory at a time."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Generator, Iterator
from hashlib import sha256
from pathlib import Path

from shoal import errors
from shoal.storage.chunks import CHUNK
from shoal.storage.digests import Digests, FileDigest, file_digest, marks
from shoal.storage.folders import open_inside

_PIECE = 1 << 20
_BLOCK = 512


Sent = Callable[[list[FileDigest]], None]


def tar_folder(root: Path, path: str, known: Digests | None = None, sent: Sent | None = None) -> Iterator[bytes]:
    """What lies at `path` below `root`; a single file keeps its name. errors.NotFound before the first byte.

    `sent` is told at the end what exactly went; a file that `known` has seen before is not digested again.
    """
    names = list(plain_files(root, path))
    if not names:
        raise errors.NotFound(f"there is nothing at {path!r}; list the folder to see what there is", path=path)
    return _stream(root, names, path.strip("/"), known, sent)


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


def _stream(root: Path, names: list[str], base: str, known: Digests | None, sent: Sent | None) -> Iterator[bytes]:
    went: list[FileDigest] = []
    for name in names:
        inner = name.rsplit("/", 1)[-1] if name == base else name.removeprefix(base).lstrip("/")
        with open_inside(root, name) as source:
            status = os.fstat(source.fileno())
            yield _header(inner, status)
            pieces = _content(source.fileno(), status.st_size)
            if sent is None:
                yield from pieces
            else:
                chunks = yield from _digested(pieces, None if known is None else known.find(name, status))
                if known is not None and marks(os.fstat(source.fileno())) == marks(status):
                    known.note(name, status, chunks)
                went.append(FileDigest(inner, status.st_size, file_digest(chunks)))
        if status.st_size % _BLOCK:
            yield bytes(_BLOCK - status.st_size % _BLOCK)
    yield bytes(2 * _BLOCK)
    if sent is not None:
        sent(went)


def _digested(pieces: Iterator[bytes], known: list[str] | None) -> Generator[bytes, None, list[str]]:
    """The same pieces; the digests of the chunks they make, computed as they pass unless known."""
    if known is not None:
        yield from pieces
        return known
    done: list[str] = []
    current, room = sha256(), CHUNK
    for piece in pieces:
        yield piece
        while len(piece) >= room:
            current.update(piece[:room])
            done.append(current.hexdigest())
            piece, current, room = piece[room:], sha256(), CHUNK
        current.update(piece)
        room -= len(piece)
    return done if room == CHUNK else [*done, current.hexdigest()]


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
