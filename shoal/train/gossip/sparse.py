"""A few entries at a time: what `compress=topk` means for two neighbours.

The caller picks entries, and both average exactly these: half of them those that have drifted most since it last
exchanged them, half in turn, so that none waits for ever. An exchange is a plain average of a part of the values: the
sum is conserved, the two come nearer, and nothing is estimated. (Public values, as in `public.py`, would be out of date
by one over the ratio exchanges, and swing.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.train.compress import TopK
from shoal.train.gossip.replica import Replica
from shoal.train.wire.frames import Buffer


class Sparse:
    """The drift of one replica, and exchanges of the entries that drifted."""

    def __init__(self, replica: Replica, squeeze: TopK) -> None:
        self.replica, self._squeeze = replica, squeeze
        self._seen: list[Tensor] = []  # each entry as it was after its last exchange, or at the beginning
        self._turn = 0

    def pick(self) -> list[Tensor]:
        """The places to exchange, for each flat tensor; each place once."""
        with self.replica.lock:
            drift = list(torch._foreach_sub(self.replica.x, self._first_seen()))
        self._turn += 1
        return [self._places(one.abs_()) for one in drift]

    def _places(self, drift: Tensor) -> Tensor:
        numel, kept = drift.numel(), self._squeeze.kept(drift.numel())
        in_turn = kept // 2 if kept > 1 else self._turn % 2
        window = (torch.arange(in_turn) + self._turn * max(1, in_turn)) % max(1, numel)
        drift[window] = -1.0
        return torch.cat([window, torch.topk(drift, kept - in_turn, sorted=False).indices])

    def _first_seen(self) -> list[Tensor]:
        self._seen = self._seen or [one.clone() for one in self.replica.x]
        return self._seen

    def read(self, places: Sequence[Tensor]) -> list[Tensor]:
        with self.replica.lock:
            return [flat[place] for flat, place in zip(self.replica.x, places, strict=True)]

    def answer(self, places: Sequence[Tensor], theirs: Sequence[Tensor]) -> list[Tensor]:
        """The passive side: half the way towards `theirs`. Returns the way."""
        ways = []
        with self.replica.lock:
            for flat, seen, place, value in zip(self.replica.x, self._first_seen(), places, theirs, strict=True):
                way = (value - flat[place]) * 0.5
                flat[place] += way
                seen[place] = flat[place]
                ways.append(way)
            self.replica.version += 1
        return ways

    def accept(self, places: Sequence[Tensor], ways: Sequence[Tensor]) -> None:
        """The active side: the same way, towards the other."""
        with self.replica.lock:
            for flat, seen, place, way in zip(self.replica.x, self._first_seen(), places, ways, strict=True):
                flat[place] -= way
                seen[place] = flat[place]
            self.replica.version += 1

    # -- on the wire: all places, then all values ----------------------------------------------------------------------

    def pack(self, *parts: Sequence[Tensor]) -> list[Buffer]:
        return [one.contiguous().view(torch.uint8).numpy().data for some in parts for one in some]

    def unpack_places(self, payload: memoryview) -> tuple[list[Tensor], memoryview]:
        """The places, and the rest of the payload."""
        places, at = [], 0
        for flat in self.replica.x:
            size = 8 * self._squeeze.kept(flat.numel())
            place = torch.frombuffer(payload[at : at + size], dtype=torch.int64)
            if size and not (int(place.min()) >= 0 and int(place.max()) < flat.numel()):
                raise ValueError(f"a neighbour names entries beyond the {flat.numel()} there are")
            places.append(place)
            at += size
        return places, payload[at:]

    def unpack_values(self, payload: memoryview) -> list[Tensor]:
        values, at = [], 0
        for flat in self.replica.x:
            size = flat.element_size() * self._squeeze.kept(flat.numel())
            values.append(torch.frombuffer(bytearray(payload[at : at + size]), dtype=flat.dtype))
            at += size
        return values

    def size(self) -> int:
        """Bytes of the values alone."""
        return sum(flat.element_size() * self._squeeze.kept(flat.numel()) for flat in self.replica.x)
