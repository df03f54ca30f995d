"""Doing what is ready: collective operations on arrays of numpy over a group of the training library.

All members do the same ones in the same order. Shapes of the others are known from their asks, so arrays travel bare.
Small arrays that are to be reduced alike travel as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.adapters.hvd.adasum import combined
from shoal.adapters.hvd.ask import (
    ADASUM,
    ALLGATHER,
    ALLTOALL,
    AVERAGE,
    BARRIER,
    BROADCAST,
    JOIN,
    MAX,
    MIN,
    PRODUCT,
    REDUCESCATTER,
    SUM,
    Ask,
)
from shoal.adapters.hvd.table import Ready

if TYPE_CHECKING:
    from shoal.train.group.api import Group

Arrays = Sequence[Any]

SMALL = 1 << 20  # bytes of an array that is worth copying to travel with others
TOGETHER = 8 << 20  # bytes that travel as one at most

_OPS = {SUM: "sum", AVERAGE: "sum", MIN: "min", MAX: "max", PRODUCT: "product"}


@dataclass
class Exchange:
    """One member's part. `arrays` of an operation are its own, or None where it has joined and brings zeros."""

    group: Group
    place: int
    ids: Sequence[int]  # how the group counts its members, by place
    ranks: Sequence[int]  # how Horovod counts them, by place

    def reduce_all(self, every: Sequence[tuple[Ready, Arrays | None]]) -> Iterator[tuple[Ready, list[Any]]]:
        """All-reduces that became ready together, each in place; small ones that are alike in one go."""
        for batch in _batches(every):
            held = [(ready, list(arrays) if arrays is not None else _zeros(ready.ask)) for ready, arrays in batch]
            if len(held) == 1:
                self._reduce(held[0][0].ask, held[0][1])
            else:
                self._reduce_as_one([arrays for _, arrays in held], held[0][0].ask)
            yield from held

    def do(self, ready: Ready, arrays: Arrays | None) -> Any:
        """Any other operation: what it gives this worker."""
        how = {
            ALLGATHER: self._gather,
            BROADCAST: self._broadcast,
            ALLTOALL: self._all_to_all,
            REDUCESCATTER: self._reduce_scatter,
            BARRIER: self._barrier,
            JOIN: self._join,
        }
        return how[ready.ask.kind](ready, arrays)

    def _reduce_as_one(self, every: Sequence[list[Any]], ask: Ask) -> None:
        parts = [part for arrays in every for part in arrays]
        whole = np.concatenate([part.reshape(-1) for part in parts])
        self._reduce(ask, [whole])
        begin = 0
        for part in parts:
            part[...] = whole[begin : begin + part.size].reshape(part.shape)
            begin += part.size

    def _reduce(self, ask: Ask, arrays: Arrays) -> None:
        size = len(self.ranks)
        for array in arrays:
            _scale(array, ask.before)
            if ask.op == ADASUM:
                array[...] = combined(self._everybodys(array))
                _scale(array, ask.after)
            elif ask.op == AVERAGE and array.dtype.kind in "fc" and ask.after == 1.0:
                self.group.all_reduce(array, "mean")
            else:
                self.group.all_reduce(array, _OPS[ask.op])
                _scale(array, ask.after / size if ask.op == AVERAGE else ask.after)

    def _everybodys(self, array: Any) -> list[Any]:
        parts = [array if place == self.place else np.empty_like(array) for place in range(len(self.ids))]
        for part, source in zip(parts, self.ids, strict=True):
            self.group.broadcast(part, source)
        return parts

    def _gather(self, ready: Ready, arrays: Arrays | None) -> list[Any]:
        assert arrays is not None
        return [self._gather_one(ready.asks, number, array) for number, array in enumerate(arrays)]

    def _gather_one(self, asks: Mapping[int, Ask], number: int, array: Any) -> Any:
        """Every worker's rows straight into their place."""
        mine = array.reshape(1) if not array.shape else array
        rows = [_rows(asks[place].shapes[number]) for place in range(len(self.ids))]
        whole = np.empty((sum(rows), *mine.shape[1:]), mine.dtype)
        begin = 0
        for place, (count, source) in enumerate(zip(rows, self.ids, strict=True)):
            part: Any = whole[begin : begin + count]
            if place == self.place:
                part[...] = mine
            if part.size:
                self.group.broadcast(part, source)
            begin += count
        return whole

    def _broadcast(self, ready: Ready, arrays: Arrays | None) -> list[Any]:
        assert arrays is not None
        source = self.ids[list(self.ranks).index(ready.ask.root)]
        for array in arrays:
            self.group.broadcast(array, source)
        return list(arrays)

    def _all_to_all(self, ready: Ready, arrays: Arrays | None) -> tuple[Any, list[int]]:
        """In pairs, all in one order of pairs, the lower sending first: nobody waits in a circle."""
        assert arrays is not None
        (array,), mine = arrays, ready.asks[self.place].splits
        received = [ready.asks[place].splits[self.place] for place in range(len(self.ids))]
        whole = np.empty((sum(received), *array.shape[1:]), array.dtype)
        outgoing, incoming = np.split(array, np.cumsum(mine)[:-1]), np.split(whole, np.cumsum(received)[:-1])
        incoming[self.place][...] = outgoing[self.place]
        for other in _partners(self.place, len(self.ids)):
            first, then = (self._send, self._receive) if self.place < other else (self._receive, self._send)
            first(other, outgoing, incoming)
            then(other, outgoing, incoming)
        return whole, received

    def _send(self, other: int, outgoing: Sequence[Any], incoming: Sequence[Any]) -> None:
        if outgoing[other].size:
            self.group.send(self.ids[other], outgoing[other])

    def _receive(self, other: int, outgoing: Sequence[Any], incoming: Sequence[Any]) -> None:
        if incoming[other].size:
            self.group.receive(self.ids[other], incoming[other])

    def _reduce_scatter(self, ready: Ready, arrays: Arrays | None) -> list[Any]:
        """The first workers get a row more where the rows do not divide."""
        whole = list(arrays) if arrays is not None else _zeros(ready.ask)
        self._reduce(ready.ask, whole)
        return [np.array_split(array, len(self.ids))[self.place].copy() for array in whole]

    def _barrier(self, ready: Ready, arrays: Arrays | None) -> None:
        """That all have asked is all there is to it."""

    def _join(self, ready: Ready, arrays: Arrays | None) -> int:
        return self.ranks[ready.last]


def _batches(
    every: Sequence[tuple[Ready, Arrays | None]],
) -> Iterator[list[tuple[Ready, Arrays | None]]]:
    """Those that may travel as one. Decided by the asks alone, so all workers cut alike."""
    alike: dict[tuple[Any, ...], list[tuple[Ready, Arrays | None]]] = {}
    held: dict[tuple[Any, ...], int] = {}
    for ready, arrays in every:
        ask, size = ready.ask, _size(ready.ask)
        if size > SMALL or ask.op == ADASUM or len(set(ask.dtypes)) != 1:
            yield [(ready, arrays)]
            continue
        key = (ask.dtypes[0], ask.op, ask.before, ask.after)
        if held.get(key, 0) + size > TOGETHER:
            yield alike.pop(key)
            held[key] = 0
        alike.setdefault(key, []).append((ready, arrays))
        held[key] = held.get(key, 0) + size
    yield from alike.values()


def _size(ask: Ask) -> int:
    return sum(
        int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        for dtype, shape in zip(ask.dtypes, ask.shapes, strict=True)
    )


def _zeros(ask: Ask) -> list[Any]:
    return [np.zeros(shape, dtype) for dtype, shape in zip(ask.dtypes, ask.shapes, strict=True)]


def _rows(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1


def _scale(array: Any, factor: float) -> None:
    """In place; whole numbers as real ones, cut towards zero."""
    if factor == 1.0:
        return
    if array.dtype.kind in "fc":
        np.multiply(array, array.dtype.type(factor), out=array)
    else:
        array[...] = np.trunc(array * factor).astype(array.dtype)


def _partners(place: int, size: int) -> Iterator[int]:
    """Whom a place meets, in an order in which no circle can wait: round by round everybody has one partner."""
    rounds = size + size % 2
    for turn in range(1, rounds):
        other = _partner(place, turn, rounds)
        if other < size:
            yield other


def _partner(place: int, turn: int, size: int) -> int:
    """The circle method of round-robin tournaments, for an even number."""
    last = size - 1
    if place == last:
        return _opposite_of_last(turn, last)
    if place == _opposite_of_last(turn, last):
        return last
    return (turn - place) % last


def _opposite_of_last(turn: int, last: int) -> int:
    """Who would meet itself in this turn meets the last one: 2 x = turn, modulo an odd number."""
    return turn * (last + 1) // 2 % last
