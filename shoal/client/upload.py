"""A folder to the server as content-addressed chunks: what the server has is not sent, what is unchanged is not read.

A broken upload is resumed by uploading again: chunks that arrived are no longer missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from shoal.client.digests import digests_of
from shoal.client.folder import check_folder, unreadable, walk
from shoal.client.http import Api
from shoal.errors import BadChunk, BadSpec, MissingChunks

CHUNK = 4 << 20
BATCH = 1_000  # digests in one question
AT_ONCE = 4  # chunks under way
ROUNDS = 5  # how often a file that changes under our hands is read again

Progress = Callable[[int, int], None]  # bytes sent, bytes to send
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a chunk can be read."""

    file: Path
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A folder on paper: the manifest's entries, and where each chunk lies."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    pieces: dict[str, Piece] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(entry["size"] for entry in self.entries)

    def add(self, path: str, file: Path, status: os.stat_result, digests: list[str]) -> None:
        self.entries.append({**_about(path, status), "size": status.st_size, "chunks": digests})
        for number, digest in enumerate(digests):
            offset = number * CHUNK
            self.pieces.setdefault(digest, Piece(file, offset, min(CHUNK, status.st_size - offset)))

    def add_link(self, path: str, status: os.stat_result, target: str) -> None:
        self.entries.append({**_about(path, status), "size": 0, "chunks": [], "link": target})


class _Changed(Exception):
    """A file is no longer what it was when it was packed."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.file = file


def pack(folder: str | Path, ignore: bool = True) -> Packed:
    """Walks and reads the folder; files that did not change since the last time are not read."""
    root = check_folder(folder)
    known = digests_of(root)
    packed = Packed()
    for found in walk(root, ignore):
        file = root / found.path
        if found.link is not None:
            packed.add_link(found.path, found.status, found.link)
            continue
        digests = known.find(found.path, found.status)
        if digests is not None:
            packed.add(found.path, file, found.status, digests)
        elif (content := _read(file)) is not None:
            known.note(found.path, *content)
            packed.add(found.path, file, *content)
    known.save()
    return packed


def pack_file(file: Path, name: str) -> Packed:
    """One file, under that name."""
    packed = Packed()
    content = _read(file)
    if content is None:
        raise BadSpec(f"there is no file {file}; check the path")
    packed.add(name, file, *content)
    return packed


def pack_files(files: Mapping[str, Path]) -> Packed:
    """Some files, each under a name of its own, and nothing of the folders they lie in."""
    packed = Packed()
    for name, file in files.items():
        one = pack_file(file, name)
        packed.entries.extend(one.entries)
        packed.pieces.update(one.pieces)
    return packed


def upload(api: Api, folder: str | Path, progress: Progress | None = None) -> str:
    """Sends what the server lacks of the folder; the id of its manifest."""
    return _manifest(api, lambda: pack(folder), progress)


def upload_files(api: Api, files: Mapping[str, Path], progress: Progress | None = None) -> str:
    """Sends what the server lacks of the files; the id of the manifest that names them."""
    return _manifest(api, lambda: pack_files(files), progress)


def _manifest(api: Api, packing: Callable[[], Packed], progress: Progress | None) -> str:
    def finish(packed: Packed) -> str:
        return str(api.request("POST", "/manifests", json={"entries": packed.entries}, again=True)["id"])

    return send(api, packing, finish, progress)


def send(api: Api, packing: Callable[[], Packed], finish: Callable[[Packed], T], progress: Progress | None) -> T:
    """Packs, sends the missing chunks and finishes; from the start again when a file changed in between."""
    culprit = "the folder"
    for _ in range(ROUNDS):
        packed = packing()
        try:
            send_chunks(api, packed.pieces, progress)
            return finish(packed)
        except _Changed as change:
            culprit = str(change.file)
        except MissingChunks:
            continue  # the server dropped some since it was asked
    raise BadSpec(f"{culprit} changes all the time and cannot be sent; leave it out with .shoalignore, or try again")


def send_chunks(api: Api, pieces: dict[str, Piece], progress: Progress | None = None) -> int:
    """Sends the chunks the server lacks, four at a time; the bytes sent."""
    missing = _missing(api, list(pieces))
    total = sum(pieces[digest].size for digest in missing)
    sent = 0
    if progress is not None:
        progress(sent, total)
    with ThreadPoolExecutor(AT_ONCE, "shoal-upload") as pool:
        tasks = [pool.submit(_put, api, digest, pieces[digest]) for digest in missing]
        try:
            for task in tasks:
                sent += task.result()
                if progress is not None:
                    progress(sent, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sent


def _missing(api: Api, digests: Sequence[str]) -> list[str]:
    missing: list[str] = []
    for start in range(0, len(digests), BATCH):
        asked = {"digests": digests[start : start + BATCH]}
        missing.extend(api.request("POST", "/chunks/missing", json=asked, again=True)["missing"])
    return missing


def _put(api: Api, digest: str, piece: Piece) -> int:
    data = _content(piece)
    if sha256(data).hexdigest() != digest:
        raise _Changed(piece.file)
    for last in (False, False, True):
        try:
            api.put_chunk(digest, data)
            break
        except BadChunk:
            # It was right when it left: something on the way cut it short.
            if last:
                raise
    return len(data)


def _content(piece: Piece) -> bytes:
    try:
        with piece.file.open("rb") as file:
            file.seek(piece.offset)
            return file.read(piece.size)
    except FileNotFoundError:
        raise _Changed(piece.file) from None


def _read(file: Path) -> tuple[os.stat_result, list[str]] | None:
    """The file's digests with the status they belong to; None when it is gone since it was listed."""
    try:
        for _ in range(ROUNDS):
            with file.open("rb") as stream:
                before = os.fstat(stream.fileno())
                digests, size = _digests(stream)
                after = os.fstat(stream.fileno())
            if size == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                return after, digests
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise unreadable(file, wrong) from None
    raise BadSpec(f"{file} changes while it is read; leave it out with .shoalignore, or try again when it is done")


def _digests(stream: BinaryIO) -> tuple[list[str], int]:
    digests: list[str] = []
    size = 0
    while piece := stream.read(CHUNK):
        digests.append(sha256(piece).hexdigest())
        size += len(piece)
    return digests, size


def _about(path: str, status: os.stat_result) -> dict[str, Any]:
    return {"path": path, "mode": status.st_mode & 0o777, "mtime": float(max(0, int(status.st_mtime)))}
