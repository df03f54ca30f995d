"""Where the gradients of workers lie, as one server of one space sees them.

A worker of this node has a slot of its own in shared memory, over the whole space; the server maps it and reads its
part there. For a worker of another node the server keeps a slot, over its part only, and receives into it. Either is a
file that outlives the process, found again by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from shoal.errors import BadRequest
from shoal.train.errors import NoRoom
from shoal.train.ps.layout import Part
from shoal.train.ps.slots import as_bytes
from shoal.train.wire.segment import Segment

_log = logging.getLogger("shoal.train")


class Berths:
    """The slots of one space. `tensors` is what the shard is given; workers come and go in it."""

    def __init__(self, folder: Path, space: str, part: Part, tensors: dict[int, Tensor]) -> None:
        self.part = part
        self.tensors = tensors
        self._folder, self._space = folder, space
        self._dtype: torch.dtype = getattr(torch, part.layout.dtype)
        self._kept: dict[int, Tensor] = {}  # the slots that are ours
        self._views: dict[int, memoryview] = {}  # the same as bytes

    def map(self, worker: int, path: str) -> None:
        """The slot of a worker of this node. BadRequest where there is none of the right size."""
        place = Path(path)
        if place.parent != self._folder:
            raise BadRequest(f"slot {path} is not in the shared folder {self._folder} of this node; say remote=true")
        try:
            self.tensors[worker] = self._mapped(place)
        except (OSError, ValueError) as wrong:
            raise BadRequest(
                f"slot {path} of worker-{worker} cannot be mapped ({wrong}); make it, then say hello"
            ) from wrong
        self._kept.pop(worker, None)
        self._views.pop(worker, None)

    def keep(self, worker: int) -> None:
        """A slot for a worker of another node: the one it had before, or a fresh one, which does not count until the
        worker has sent something: see `ready`."""
        if worker in self._views:
            return
        path = self._own(worker)
        try:
            segment = Segment.open(path) if self._fits(path) else Segment.create(path, self.part.bytes)
            self._kept[worker] = segment.tensor(self._dtype, 0, self.part.count)
        except NoRoom as short:
            # An update cut off by our death is then finished when the worker sends its gradient again.
            _log.warning("the slot of worker-%d is in plain memory: %s", worker, short.message)
            self._kept[worker] = torch.zeros(self.part.count, dtype=self._dtype)
        self._views[worker] = as_bytes(self._kept[worker])

    def ready(self, worker: int) -> None:
        """All of a push has arrived: the shard may read it."""
        if worker in self._kept:
            self.tensors[worker] = self._kept[worker]

    def decode(self, worker: int, code: memoryview, decode: Callable[[memoryview, Tensor], None]) -> None:
        """A push that came squeezed."""
        self.view(worker)  # BadRequest for one that has no slot here
        decode(code, self._kept[worker])

    def keeps(self, worker: int) -> bool:
        """Whether the slot of this worker is kept here: it is on another node."""
        return worker in self._views

    def view(self, worker: int, begin: int = 0, count: int | None = None) -> memoryview:
        """A range of a slot kept here, as bytes. BadRequest for a worker that has none, or a range outside."""
        count = self.part.count - begin if count is None else count
        if worker not in self._views:
            raise BadRequest(f"worker-{worker} sends values but has no slot here; say hello with remote=true first")
        if begin < 0 or count < 0 or begin + count > self.part.count:
            raise BadRequest(
                f"elements {begin}..{begin + count} are not in a part of {self.part.count}; check the layout"
            )
        size = self.part.layout.itemsize
        return self._views[worker][begin * size : (begin + count) * size]

    def find(self) -> None:
        """After a restart: every slot that is still there."""
        for path in self._folder.glob(f"*-{self._space}-w*"):
            worker = _worker(path, self._space)
            if worker is None:
                continue
            if path == self._own(worker) and self._fits(path):
                self.keep(worker)
                self.ready(worker)
            elif path.name == f"grad-{self._space}-w{worker}":
                try:
                    self.tensors[worker] = self._mapped(path)
                except (OSError, ValueError):
                    continue  # of another shape: its worker will say hello with a better one

    def forget(self, worker: int) -> None:
        """The worker left for good: its file is given back. The tensor is the shard's to let go."""
        self._kept.pop(worker, None)
        if self._views.pop(worker, None) is not None:
            self._own(worker).unlink(missing_ok=True)

    def _own(self, worker: int) -> Path:
        return self._folder / f"slot-{self._space}-w{worker}-s{self.part.server}"

    def _fits(self, path: Path) -> bool:
        return path.exists() and path.stat().st_size >= self.part.bytes

    def _mapped(self, path: Path) -> Tensor:
        offset = self.part.offset * self.part.layout.itemsize
        return Segment.open(path).tensor(self._dtype, offset, self.part.count)


def _worker(path: Path, space: str) -> int | None:
    number = path.name.split(f"-{space}-w", 1)[1].split("-s", 1)[0]
    return int(number) if number.isdigit() else None
