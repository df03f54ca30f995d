"""What a push carries over the network, and where its answer lands. Within a node nothing of this is needed.

Gradients may go ahead during backward (see `early`); the push then brings only the rest. Squeezed ones go as codes, and
the server unpacks them; a server of this node finds the same numbers in the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from shoal.train.compress import Compressor
from shoal.train.ps.counterpart import PARAMS, SLOT, Counterpart
from shoal.train.ps.early import Early
from shoal.train.ps.layout import Part
from shoal.train.ps.servers import Servers
from shoal.train.ps.slots import Slot, as_bytes
from shoal.train.wire.frames import Buffer

GAP = 16_384  # elements: ranges nearer than this travel as one, although what lies between went ahead


class Parcels:
    """The payloads of one space."""

    def __init__(
        self,
        space: str,
        slot: Slot,
        servers: Servers,
        tensors: Sequence[Tensor],
        squeezer: Compressor | None,
        ahead: bool = True,
    ) -> None:
        self.squeezer = squeezer
        self._space, self._slot, self._servers = space, slot, servers
        self._pinned = any(one.is_cuda for one in tensors)
        self._count = len(tensors)
        self._ahead: frozenset[int] = frozenset()  # parameters that travelled during backward
        self._codes: dict[int, Tensor] = {}  # by server
        self._staging: dict[int, Tensor] = {}  # by server: where its parameters arrive
        worth = ahead and squeezer is None and (self._pinned or not servers.near)
        self.early = Early(tensors, self._leave, slot.holds) if worth else None

    def stale(self) -> Sequence[int]:
        """The parameters whose gradients are not in the slot yet, as they are now."""
        every = range(self._count)
        stale = self.early.stale() if self.early else every
        self._ahead = frozenset(every).difference(stale)
        return stale

    def seal(self) -> None:
        """The slot is final: squeezes it, if that is wanted."""
        if self.squeezer is None:
            return
        for one in self._servers:
            part = self._slot.part(one.part)
            code = self._codes[one.part.server] = self.squeezer.encode(f"{self._space}/{one.part.server}", part)
            if one.here:
                self.squeezer.decode(code, part)
        self._slot.taint()

    def hand_over(self, one: Counterpart) -> None:
        """What went ahead to this server is completed, so that the push need not bring all."""
        if self._ahead and not one.here:
            ranges = self._rest(one.part)
            one.complete([(at, self._slot.payload(one.part, at, count), count) for at, count in ranges])

    def payload(self, one: Counterpart) -> Sequence[Buffer]:
        """What the push itself brings."""
        if one.here or one.filled:
            return ()
        code = self._codes.get(one.part.server)
        return [self._slot.payload(one.part) if code is None else as_bytes(code)]

    def landing(self, one: Counterpart, want: str) -> memoryview | None:
        """Where the answer goes."""
        if one.here or want not in (PARAMS, SLOT):
            return None
        return self._slot.payload(one.part) if want == SLOT else as_bytes(self.staged(one))

    def staged(self, one: Counterpart) -> Tensor:
        """The parameters that came from a server, flat over its part."""
        found = self._staging.get(one.part.server)
        if found is None:
            found = torch.empty(one.part.count, dtype=self._slot.flat.dtype, pin_memory=self._pinned)
            self._staging[one.part.server] = found
        return found

    def answered(self) -> None:
        self._ahead = frozenset()
        self._codes.clear()

    def close(self) -> None:
        if self.early:
            self.early.close()
            self.early = None

    def _rest(self, part: Part) -> list[tuple[int, int]]:
        """The ranges of a part that did not go ahead, near ones as one."""
        ranges: list[tuple[int, int]] = []
        for piece in part.pieces:
            if piece.param in self._ahead:
                continue
            begin = piece.offset - part.offset
            if ranges and begin - sum(ranges[-1]) <= GAP:
                ranges[-1] = (ranges[-1][0], begin + piece.count - ranges[-1][0])
            else:
                ranges.append((begin, piece.count))
        return ranges

    def _leave(self, index: int, grad: Tensor) -> None:
        """In backward: a gradient is done, it seems. From a GPU the copy only begins; it travels with the push."""
        self._slot.put([(index, grad)])
        if grad.is_cuda:
            return
        for piece in self._slot.layout.pieces_of(index):
            for at, one in enumerate(self._servers):
                begin, count = piece.offset - one.part.offset, piece.count
                if not one.here and 0 <= begin < one.part.count:
                    view = self._slot.payload(one.part, begin, count)
                    self._servers.later(at, partial(one.fill, begin, view, count))
