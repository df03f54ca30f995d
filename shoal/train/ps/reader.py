"""A worker's window on a shard of its own node: parameters are copied straight out of the server's memory.

The server never waits for readers. A chunk's stamp is odd while it is written and different afterwards; what was copied
of a chunk whose stamp moved is copied again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.train.errors import WaitedTooLong
from shoal.train.ps.header import FILLED, VERSION
from shoal.train.ps.layout import Chunk, Part
from shoal.train.ps.memory import Memory

Pairs = Sequence[tuple[Tensor, int, int]]

PATIENCE = 60.0  # seconds that a chunk may stay half written: a spare server takes over in two
BLOCK = 8  # chunks that are copied between two looks at their stamps
_SPINS = 50  # tries before the reader begins to sleep between them
_NAP = 0.0005


class Reader:
    """Reads while the server writes. Never changes anything."""

    def __init__(self, path: str | Path) -> None:
        """BadCheckpoint, FileNotFoundError as for the shard."""
        self._memory = Memory.open(path)
        self._path = Path(path)
        self.part: Part = self._memory.part
        self.params: Tensor = self._memory.params  # flat over the part; copy it only inside `read`
        self._pairs: Pairs | None = None
        self._blocks: list[_Block] = []

    @property
    def version(self) -> int:
        return self._memory.header[VERSION]

    @property
    def initialised(self) -> bool:
        return bool(self._memory.header[FILLED])

    def read(self, copy: Callable[[Sequence[Chunk]], None], patience: float = PATIENCE) -> int:
        """Calls `copy` with all chunks, then with those that were written meanwhile, until none was. Returns the
        version before the first copy, so that staleness is never taken for less than it is. WaitedTooLong when a
        chunk stays half written."""
        version = self.version
        self._settle(range(len(self.part.chunks)), copy, time.monotonic() + patience)
        return version

    def copy(self, pairs: Pairs, patience: float = PATIENCE) -> int:
        """`read` into flat tensors: (target, offset in the part, count) each. Cheaper with the same list again.
        Block by block: what the server writes behind the reader need not be copied again."""
        if self._pairs is not pairs:
            self._pairs, self._blocks = pairs, _blocks(self.part, self.params, pairs)
        version, deadline = self.version, time.monotonic() + patience
        with torch.no_grad():
            for block in self._blocks:
                self._settle(block.chunks, block.copy, deadline)
        return version

    def close(self) -> None:
        """Lets go of the memory. Harmless twice."""
        self._memory.segment.close()

    def _settle(self, chunks: range, copy: Callable[[Sequence[Chunk]], None], deadline: float) -> None:
        """Copies these chunks, and again those that were written meanwhile."""
        stamps, every = self._memory.stamps[chunks.start : chunks.stop], self.part.chunks
        before = stamps.copy()
        copy(every[chunks.start : chunks.stop])
        torn = _torn(before, stamps)
        tries = 0
        while len(torn):
            before = stamps.copy()
            copy([every[chunks.start + index] for index in torn])
            torn = np.intersect1d(torn, _torn(before, stamps))
            tries += 1
            if tries > _SPINS:
                self._nap(torn + chunks.start, deadline)

    def _nap(self, torn: np.ndarray[Any, np.dtype[Any]], deadline: float) -> None:
        if len(torn) and time.monotonic() > deadline:
            raise WaitedTooLong(
                f"chunk {int(torn[0])} of {self._path.name} stays half written; "
                f"server-{self.part.server} does not finish it: look at its log",
                [f"server-{self.part.server}"],
            )
        time.sleep(_NAP)


@dataclass(frozen=True)
class _Block:
    """Some chunks that lie side by side, and the ranges of targets that lie in them."""

    chunks: range
    pairs: list[tuple[Tensor, int, int]]
    params: Tensor
    targets: list[Tensor]
    sources: list[Tensor]
    devices: list[torch.device]  # GPUs among the targets

    def copy(self, chunks: Sequence[Chunk]) -> None:
        if len(chunks) == len(self.chunks):
            if self.targets:
                torch._foreach_copy_(self.targets, self.sources, non_blocking=True)
        else:
            for chunk in chunks:
                for target, at, count in _within(self.pairs, chunk.local, chunk.local + chunk.count):
                    target.copy_(self.params[at : at + count], non_blocking=True)
        for device in self.devices:  # a copy that has only begun would read what the server writes next
            torch.cuda.current_stream(device).synchronize()


def _blocks(part: Part, params: Tensor, pairs: Pairs) -> list[_Block]:
    ordered, at = sorted(pairs, key=lambda pair: pair[1]), 0
    blocks = []
    for first in range(0, len(part.chunks), BLOCK):
        last = min(first + BLOCK, len(part.chunks))
        begin, end = part.chunks[first].local, part.chunks[last - 1].local + part.chunks[last - 1].count
        after = at
        while after < len(ordered) and ordered[after][1] < end:
            after += 1
        own = _within(ordered[at:after], begin, end)
        at = after - 1 if after > at and sum(ordered[after - 1][1:]) > end else after  # one may go on in the next
        sources = [params[begin : begin + count] for _, begin, count in own]
        targets = [target for target, _, _ in own]
        devices = list({target.device for target in targets if target.is_cuda})
        blocks.append(_Block(range(first, last), own, params, targets, sources, devices))
    return blocks


def _within(pairs: Pairs, begin: int, end: int) -> list[tuple[Tensor, int, int]]:
    """The parts of the targets that lie in [begin, end)."""
    found = []
    for target, at, count in pairs:
        first, last = max(at, begin), min(at + count, end)
        if first < last:
            found.append((target[first - at : last - at], first, last - first))
    return found


def _torn(
    before: np.ndarray[Any, np.dtype[Any]], now: np.ndarray[Any, np.dtype[Any]]
) -> np.ndarray[Any, np.dtype[Any]]:
    return np.flatnonzero((before != now) | (before % 2 == 1))
