"""Between machines without torch: numbers go round in messages of the roll call.

An all-reduce is the ring of Patarasuk and Yuan (2009): each member owns one block, which is summed on its way round and
then handed round again; every member sends and receives 2 (n - 1) / n of the tensor. Blocks travel in pieces, so that
one piece is added while the next is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.train.group import calls
from shoal.train.group.rollcall import Arrival, Rollcall
from shoal.train.group.staging import raw
from shoal.train.group.ways import SMALL, call_source, reduce_at_once

PIECE = 1 << 20  # bytes of one message

_COMBINE: dict[str, Any] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}


class Streams:
    """Implements `ways.Way` for arrays of numpy."""

    def __init__(self, roll: Rollcall) -> None:
        self.roll = roll

    def reduce(self, whole: Any, op: str, weight: int, sign: int) -> int:
        if whole.nbytes <= SMALL:
            return reduce_at_once(self.roll, whole, op, weight, sign)
        came = self.roll.arrive(sign, weight)
        ring = sorted(one.rank for one in came)
        if len(ring) > 1:
            self._go_round(whole, op, ring)
        return sum(one.weight for one in came)

    def broadcast(self, whole: Any, source: int | None, sign: int) -> None:
        root, came = call_source(self.roll, whole, source, sign)
        if whole.nbytes <= SMALL:
            return
        others = [one.rank for one in came if one.rank != root.rank]
        for begin in range(0, len(whole), _step(whole)):
            piece = whole[begin : begin + _step(whole)]
            if root.rank != self.roll.rank:
                self._take(root.rank, piece)
            for other in others if root.rank == self.roll.rank else ():
                self._post(other, piece)

    def exchange(self, data: bytes, sign: int) -> list[Arrival]:
        return self.roll.arrive(sign, 1, data)

    def close(self) -> None:
        """Nothing is held here: the roll call says goodbye."""

    def _go_round(self, whole: Any, op: str, ring: Sequence[int]) -> None:
        size, place = len(ring), ring.index(self.roll.rank)
        after, before = ring[(place + 1) % size], ring[(place - 1) % size]
        blocks = np.array_split(whole, size)
        found = np.empty(len(blocks[0]), whole.dtype)
        for turn in range(size - 1):
            sent, got = blocks[(place - turn) % size], blocks[(place - turn - 1) % size]
            self._pass_on(sent, found[: len(got)], after, before)
            _COMBINE[op](found[: len(got)], got, out=got)
        for turn in range(size - 1):
            self._pass_on(blocks[(place - turn + 1) % size], blocks[(place - turn) % size], after, before)

    def _pass_on(self, sent: Any, got: Any, after: int, before: int) -> None:
        """A message waits at its receiver, never here: posting first cannot block."""
        step = _step(sent)
        for begin in range(0, max(len(sent), len(got)), step):
            if begin < len(sent):
                self._post(after, sent[begin : begin + step])
            if begin < len(got):
                self._take(before, got[begin : begin + step])

    def _post(self, to: int, piece: Any) -> None:
        self.roll.post(to, calls.sign(calls.SEND, piece.dtype, len(piece)), raw(piece))

    def _take(self, source: int, piece: Any) -> None:
        raw(piece)[:] = self.roll.take(source, calls.sign(calls.SEND, piece.dtype, len(piece)))


def _step(whole: Any) -> int:
    return max(1, PIECE // int(whole.dtype.itemsize))
