"""The part of a checkpoint that one worker writes: the state of things by name, as JSON and files of tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from shoal.train.checkpoint import beside, chain, tensors, tree
from shoal.train.checkpoint.chain import Manifest
from shoal.train.checkpoint.disk import Disk, Facts
from shoal.train.checkpoint.staging import Staged, Staging
from shoal.train.errors import BadCheckpoint

WHOLE, SHARED, EACH = "whole", "shared", "each"


@dataclass(frozen=True)
class Item:
    """One thing that a checkpoint holds.

    whole: the same for all, so the first worker writes it and everyone reads it; only the first is asked.
    shared: likewise, but all must be asked, because answering is collective.
    each: everyone writes and reads its own; a worker that had none gets the first one's.
    """

    name: str
    state: Callable[[], Any]
    load: Callable[[Any], None]
    scope: str = WHOLE
    file: str | None = None  # its tensors have a file of their own, under their own names
    needed: bool = False  # a checkpoint without it is of something else


@dataclass
class Part:
    """What one worker has to write, as it was when the save began."""

    rank: int
    items: dict[str, Any] = field(default_factory=dict)  # name → JSON
    where: dict[str, str] = field(default_factory=dict)  # name → the file of its tensors
    staged: dict[str, Staged] = field(default_factory=dict)
    beside: dict[str, Facts] = field(default_factory=dict)  # files that servers wrote

    @classmethod
    def collect(cls, rank: int, items: list[Item], staging: Staging, folder: Path) -> Part:
        """Asks every item, and copies what they say to host memory."""
        part, files = cls(rank), dict[str, dict[str, Tensor]]()
        with beside.at(folder) as others:
            part._ask(items, files)
        part.beside = others.files
        part.staged = {file: staging.stage(file, every) for file, every in files.items() if every}
        return part

    def _ask(self, items: list[Item], files: dict[str, dict[str, Tensor]]) -> None:
        for item in items:
            if item.scope == WHOLE and self.rank:
                continue
            state = item.state()
            if item.scope == SHARED and self.rank:
                continue
            file = self._file(item)
            self.items[item.name] = tree.pack(state, "" if item.file else item.name, files.setdefault(file, {}))
            self.where[item.name] = file

    def write(self, folder: Path, token: str, disk: Disk) -> None:
        """All files, and last the one that names them."""
        written = {file: disk.write(folder / file, staged.pieces()) for file, staged in self.staged.items()}
        told = {
            "token": token,
            "rank": self.rank,
            "items": self.items,
            "where": self.where,
            "files": {file: [one.bytes, one.sha256] for file, one in {**written, **self.beside}.items()},
        }
        disk.put(folder / listing(self.rank), json.dumps(told).encode())

    def _file(self, item: Item) -> str:
        if item.file is None:
            return f"rank-{self.rank}{tensors.SUFFIX}"
        return (f"rank-{self.rank}-{item.file}" if item.scope == EACH else item.file) + tensors.SUFFIX


def listing(rank: int) -> str:
    return f"rank-{rank}.json"


def written(folder: Path, rank: int, token: str) -> dict[str, Facts] | None:
    """The files of a worker's part, its listing among them; None while it is not all there."""
    try:
        content = (folder / listing(rank)).read_bytes()
    except FileNotFoundError:
        return None
    told = json.loads(content)
    if told["token"] != token:
        return None
    files = {file: Facts(*one) for file, one in told["files"].items()}
    return {**files, listing(rank): chain.digest(content)}


class Opened:
    """A worker's part, read back and found whole."""

    def __init__(self, folder: Path, manifest: Manifest, rank: int) -> None:
        """BadCheckpoint when a file is missing or not what was written."""
        self.folder, self.manifest, self.rank = folder, manifest, rank
        chain.check(folder, manifest, lambda name: name == listing(rank))
        try:
            self._told: Mapping[str, Any] = json.loads((folder / listing(rank)).read_text())
        except FileNotFoundError as missing:
            raise BadCheckpoint(f"{folder} has no part of worker-{rank}; take an earlier checkpoint") from missing
        chain.check(folder, manifest, lambda name: name in self._told["files"])
        self._tensors: dict[str, dict[str, Tensor]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._told["items"]

    def state(self, name: str) -> Any:
        file = self._told["where"][name]
        if file not in self._tensors:
            written = file in self._told["files"]
            self._tensors[file] = tensors.read(self.folder / file) if written else {}
        return tree.unpack(self._told["items"][name], self._tensors[file])


def has_part(manifest: Manifest, rank: int) -> bool:
    return listing(rank) in manifest.files
