"""A worker's slot: its gradients (or changes) of a space in the flat order of the layout, where servers read them.

Servers of this node map the slot's file: a push moves no bytes. To the others a server's range of it is sent as it
lies. What lies in a slot must not change between a push and its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shoal.train.ps.lane import Lane, pin, unpin
from shoal.train.ps.layout import Layout, Part
from shoal.train.wire.segment import Segment


class Slot:
    """One flat buffer and, for every parameter, the places of its pieces in it."""

    def __init__(self, layout: Layout, path: Path | None, lane: Lane, pinned: bool = False) -> None:
        """`path` is the file that servers of this node map; None where there are none. NoRoom where it does not fit."""
        self.layout = layout
        self.path = path
        dtype = getattr(torch, layout.dtype)
        self._segment = Segment.create(path, layout.bytes, touch=True) if path else None
        self.flat = (
            self._segment.tensor(dtype, 0, layout.count) if self._segment else torch.zeros(layout.count, dtype=dtype)
        )
        self._lane = lane
        self._pinned = pinned and pin(self.flat)
        self._places = [self._place(index) for index in range(len(layout.params))]
        self._zero = [True] * len(layout.params)  # whose places hold nothing but zeros

    def put(self, filled: Iterable[tuple[int, Tensor | None]]) -> None:
        """Lays the tensors of these parameters down; None is all zeros. On a GPU the copies are only begun."""
        to: list[Tensor] = []
        source: list[Tensor] = []
        for index, tensor in filled:
            if tensor is None:
                self.clear(index)
                continue
            self._zero[index] = False
            dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
            for begin, place in self._places[index]:
                to.append(place)
                source.append(dense if place.shape == dense.shape else dense.reshape(-1)[begin : begin + place.numel()])
        with torch.no_grad():
            self._lane.out(to, source)

    def add(self, filled: Iterable[tuple[int, Tensor]], scale: float = 1.0) -> None:
        """Adds to what lies there; at once, whatever the device."""
        with torch.no_grad():
            for index, tensor in filled:
                self._zero[index] = False
                dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
                flat = dense.to("cpu", self.flat.dtype).reshape(-1)
                for begin, place in self._places[index]:
                    place.view(-1).add_(flat[begin : begin + place.numel()], alpha=scale)

    def of(self, index: int) -> Tensor:
        """What lies there for one parameter, in its shape."""
        places = self._places[index]
        if len(places) == 1:
            return places[0][1]
        return torch.cat([place for _begin, place in places]).view(self.layout.params[index].shape)

    def holds(self, index: int, tensor: Tensor) -> bool:
        """Whether exactly these values lie there."""
        with torch.no_grad():
            flat = tensor.detach().to(self.flat.dtype).reshape(-1)
            return all(torch.equal(place.view(-1), flat[at : at + place.numel()]) for at, place in self._places[index])

    def clear(self, index: int) -> None:
        if not self._zero[index]:
            for _begin, place in self._places[index]:
                place.zero_()
            self._zero[index] = True

    def clear_all(self) -> None:
        for index in range(len(self._places)):
            self.clear(index)

    def taint(self) -> None:
        """Somebody wrote to `flat` directly: nothing is known to be zero."""
        self._zero = [False] * len(self._places)

    def part(self, part: Part) -> Tensor:
        """What one server of it reads."""
        return self.flat[part.offset : part.offset + part.count]

    def payload(self, part: Part, begin: int = 0, count: int | None = None) -> memoryview:
        """The same as bytes to send; `begin` and `count` cut a range out of the part."""
        first = part.offset + begin
        piece = self.flat[first : first + (part.count - begin if count is None else count)]
        return as_bytes(piece)

    def close(self) -> None:
        """Gives the file and the memory back. Harmless twice."""
        if self._pinned:
            unpin(self.flat)
            self._pinned = False
        if self._segment:
            self._segment.close()
            self._segment.unlink()
            self._segment = None

    def _place(self, index: int) -> list[tuple[int, Tensor]]:
        """A parameter that lies in one piece has its own shape there, so that one whose gradient is not contiguous is
        copied without a detour."""
        info, pieces = self.layout.params[index], self.layout.pieces_of(index)
        if len(pieces) == 1:
            one = pieces[0]
            return [(0, self.flat[one.offset : one.offset + one.count].view(_shape(info.shape, info.numel)))]
        return [(one.begin, self.flat[one.offset : one.offset + one.count]) for one in pieces]


def as_bytes(flat: Tensor) -> memoryview:
    """The bytes of a flat tensor of the host, not copied."""
    return flat.numpy().data.cast("B")


def _shape(shape: Sequence[int], numel: int) -> tuple[int, ...]:
    return tuple(shape) if shape else (() if numel == 1 else (numel,))
