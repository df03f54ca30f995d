"""A tar stream into a folder, and nothing outside it: no absolute path, no `..`, no link that leaves, no device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_COPY = 1024 * 1024  # bytes at a time


class BadArchive(Exception):
    """An entry that has no business in a user's folder."""


def unpack(stream: Any, folder: Path) -> None:
    """Extracts files, folders and symbolic links; what exists is replaced. BadArchive, or OSError from the disk."""
    import tarfile  # here, because it costs 8 ms and a plain command has no code

    folder.mkdir(parents=True, exist_ok=True)
    root = folder.resolve()
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for entry in archive:
                _extract(archive, entry, root)
    except tarfile.TarError as error:
        raise BadArchive(f"what came is not a tar archive: {error}") from error


def _extract(archive: Any, entry: Any, root: Path) -> None:
    name = entry.name
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise BadArchive(f"the path {name!r} leads out of the folder")
    target = root / name
    if entry.isdir():
        _refuse_outside(target, root, name)
        target.mkdir(parents=True, exist_ok=True)
    elif entry.issym():
        _link(entry.linkname, target, root, name)
    elif entry.isreg():
        _file(archive.extractfile(entry), target, entry.mode, root, name)
    else:
        raise BadArchive(f"{name!r} is neither a file nor a folder nor a symbolic link")


def _refuse_outside(target: Path, root: Path, name: str) -> None:
    """Also a path that some link on its way leads outside."""
    real = target.resolve()
    if real != root and root not in real.parents:
        raise BadArchive(f"the path {name!r} leads out of the folder, to {real}")


def _link(points_to: str, target: Path, root: Path, name: str) -> None:
    if points_to.startswith("/"):
        raise BadArchive(f"the link {name!r} points to {points_to!r}, which is absolute")
    _refuse_outside(target.parent / points_to, root, f"{name} -> {points_to}")
    _make_room(target, root, name)
    target.symlink_to(points_to)


def _file(content: Any, target: Path, mode: int, root: Path, name: str) -> None:
    _make_room(target, root, name)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o777 | 0o600)
    with open(handle, "wb") as file:
        while True:
            data = content.read(_COPY)
            if not data:
                return
            file.write(data)


def _make_room(target: Path, root: Path, name: str) -> None:
    _refuse_outside(target.parent, root, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.exists():
        target.unlink()
