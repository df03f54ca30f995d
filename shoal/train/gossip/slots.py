"""Where two workers of one machine exchange values: a piece of shared memory for each pair and direction.

The caller lays its values there, the called one reads them and may write its answer over them; the messages that say so
travel over the link. Whoever calls owns the piece. Where memory cannot be shared, values travel in the messages."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

from torch import Tensor

from shoal.train.errors import NoRoom
from shoal.train.flat import Flat
from shoal.train.wire.segment import Segment, usable
from shoal.train.world import World

_NAME = re.compile(r"gossip-[0-9.]+-w\d+-w\d+-\d+")
_log = logging.getLogger("shoal.train")


class Slots:
    """The shared pieces of one space: those this worker owns, and those of others that it has opened."""

    def __init__(self, world: World, space: str, layout: Flat, life: int) -> None:
        self._folder = world.shared if usable() else None
        self._world, self._space, self._layout, self._life = world, space, layout, life
        self._own: dict[int, Segment | None] = {}
        self._others: dict[str, Segment] = {}
        self._lock = threading.Lock()

    def own(self, rank: int, node: str) -> tuple[str, list[Tensor]] | None:
        """The piece for calls to a worker, and its name; None where there is none."""
        if self._folder is None or node != self._world.node:
            return None
        with self._lock:
            if rank not in self._own:
                self._own[rank] = self._create(self._folder, rank)
            segment = self._own[rank]
        return None if segment is None else (segment.path.name, self._flats(segment))

    def _create(self, folder: Path, rank: int) -> Segment | None:
        name = f"gossip-{self._space}-w{self._world.rank}-w{rank}-{self._life}"
        try:
            return Segment.create(folder / name, max(1, self._layout.bytes))
        except NoRoom as full:
            _log.warning("gossip with worker-%d goes over the network: %s", rank, full)
            return None

    def open(self, name: str) -> list[Tensor]:
        """The piece of a caller. The name is one of ours or it is not opened."""
        with self._lock:
            if name not in self._others:
                if self._folder is None or not _NAME.fullmatch(name):
                    raise ValueError(f"{name!r} is no piece of shared memory for a gossip")
                self._others[name] = Segment.open(self._folder / name)
            segment = self._others[name]
        return self._flats(segment)

    def _flats(self, segment: Segment) -> list[Tensor]:
        flats, offset = [], 0
        for dtype, count in self._layout.sizes():
            flats.append(segment.tensor(dtype, offset, count))
            offset += count * dtype.itemsize
        return flats

    def lost(self, rank: int) -> None:
        """A worker is gone: what was kept for it goes, too."""
        with self._lock:
            gone = [self._own.pop(rank, None)]
            # Those of its own it cannot remove any more.
            gone += [self._others.pop(name) for name in list(self._others) if f"-w{rank}-w{self._world.rank}-" in name]
        for segment in gone:
            if segment is not None:
                segment.unlink()
                segment.close()

    def close(self) -> None:
        with self._lock:
            own, others = list(self._own.values()), list(self._others.values())
            self._own, self._others = {}, {}
        for segment in own:
            if segment is not None:
                segment.unlink()
        for segment in others:
            segment.close()
