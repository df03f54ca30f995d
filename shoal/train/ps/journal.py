"""How one chunk is written so that a death in the middle of it can be undone.

The ranges that will change are copied into the journal, which is small enough to stay in the processor's cache, and
only then is OPEN set to the chunk. Readers see an odd stamp until the chunk is whole again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from shoal.train.ps.header import NEXT, OPEN, Header
from shoal.train.ps.memory import Memory


class Journal:
    """Room for everything that changes in one chunk."""

    def __init__(self, memory: Memory) -> None:
        self._header: Header = memory.header
        self._stamps: np.ndarray[Any, np.dtype[Any]] = memory.stamps
        self._rows, self._row = memory.rows, memory.journal_row
        longest = max((chunk.count for chunk in memory.part.chunks), default=0)
        starts = range(0, len(memory.journal), max(1, longest))
        self._ranges = [memory.journal[at : at + longest] for at in starts]
        self._cut: dict[int, list[Tensor]] = {}

    def open(self, index: int, changing: Sequence[Tensor]) -> Tensor | None:
        """Keeps what is about to change; returns the copy of the first range. After this the chunk may be written."""
        for kept, now in zip(self._kept(changing), changing, strict=True):
            kept.copy_(now)
        self._row[:] = self._rows[index]
        self._header[OPEN] = index
        self._stamps[index] += 1
        return self._kept(changing[:1])[0] if changing else None

    def close(self, index: int) -> None:
        """The chunk is written."""
        self._stamps[index] += 1
        self._header[NEXT] = index + 1

    def undo(self, changing: Sequence[Tensor]) -> None:
        """Restores the chunk that was open when the process died, if one was. Harmless twice. `changing` must be what
        `open` was given: call `rewind` first, for it depends on the chunk's row."""
        if self._header[OPEN] == self._header[NEXT]:
            for kept, now in zip(self._kept(changing), changing, strict=True):
                now.copy_(kept)
            self.settle(self._header[NEXT])

    def rewind(self) -> None:
        """Restores the row of the open chunk: whether it had state, and its numbers."""
        if self._header[OPEN] == self._header[NEXT]:
            self._rows[self._header[OPEN]] = self._row

    def settle(self, index: int) -> None:
        """An odd stamp that nobody will finish becomes even: the chunk can be read."""
        self._stamps[index] += self._stamps[index] % 2

    def _kept(self, changing: Sequence[Tensor]) -> list[Tensor]:
        if not changing:
            return []
        count = len(changing[0])
        cut = self._cut.get(count)
        if cut is None:
            cut = self._cut[count] = [one[:count] for one in self._ranges]
        return cut[: len(changing)]
