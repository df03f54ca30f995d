"""What lies beside a shard in files of its own, made when first needed: contributions that are held, and with delay
compensation the parameters as each worker read them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from shoal.train.ps.applier import Cut
from shoal.train.ps.layout import Part
from shoal.train.wire.segment import Segment

_HELD, _READ = "held", "read-"


class Beside:
    """Flat tensors over the part, by name, found again after a restart."""

    def __init__(self, path: Path, part: Part) -> None:
        self._path, self._part = path, part
        self._flat: dict[str, Tensor] = {}
        self._cut: dict[str, Cut] = {}
        for file in beside(path):
            self._map(file.name.removeprefix(f"{path.name}."), Segment.open(file))

    @property
    def held(self) -> Tensor:
        self.held_cut()
        return self._flat[_HELD]

    def held_cut(self) -> Cut:
        return self._get(_HELD)

    def read_cut(self, worker: int) -> Cut | None:
        """The parameters as the worker read them; None where that was not noted."""
        return self._cut.get(f"{_READ}{worker}")

    def note_read(self, worker: int, params: Cut) -> None:
        torch._foreach_copy_(list(self._get(f"{_READ}{worker}")), list(params))

    def _get(self, name: str) -> Cut:
        if name not in self._cut:
            self._map(name, Segment.create(f"{self._path}.{name}", self._part.bytes))
        return self._cut[name]

    def _map(self, name: str, segment: Segment) -> None:
        self._flat[name] = segment.tensor(getattr(torch, self._part.layout.dtype), 0, self._part.count)
        self._cut[name] = in_chunks(self._flat[name], self._part)


def in_chunks(flat: Tensor, part: Part) -> Cut:
    """A flat tensor over the part as its chunks."""
    return [flat[chunk.local : chunk.local + chunk.count] for chunk in part.chunks]


def beside(path: Path) -> list[Path]:
    """The files that belong to a shard and are not the shard."""
    return sorted([*path.parent.glob(f"{path.name}.{_HELD}"), *path.parent.glob(f"{path.name}.{_READ}*")])
