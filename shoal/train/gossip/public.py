"""What two neighbours know of each other when their values travel squeezed (CHOCO-Gossip: Koloskova, Stich, Jaggi,
ICML 2019, 1902.00340).

Each side has a public value that both know. It follows the true one by squeezed steps, so that what one step could not
carry is in the next. Both move by the same part of the difference of the public values, one up, one down: whatever the
squeezing, the sum of the two is conserved to the bit. The part is the smaller the coarser the squeezing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.train.compress import Compressor
from shoal.train.flat import Flat
from shoal.train.gossip.parcel import Parcel
from shoal.train.gossip.replica import Flats
from shoal.train.wire.frames import Buffer

PART = {"fp16": 1.0, "bf16": 1.0, "onebit": 0.4}


class Public:
    """The public values of one pair, as one of them keeps them."""

    def __init__(self, layout: Flat, squeeze: Compressor) -> None:
        self.ours, self.theirs = layout.empty(), layout.empty()
        self._layout, self._squeeze = layout, squeeze

    def size(self, first: bool) -> int:
        """Bytes of a message."""
        return self._layout.bytes if first else sum(self._squeeze.size(flat) for flat in self.ours)

    def advance(self, true: Flats, first: bool) -> Sequence[Buffer]:
        """Brings our public value towards the true one; what the neighbour must be sent to do the same."""
        if first:
            torch._foreach_copy_(self.ours, true)
            return [_bytes(one) for one in true]
        torch._foreach_sub_(true, self.ours)
        codes = [self._squeeze.squeeze(one) for one in true]
        for flat, code in zip(self.ours, codes, strict=True):
            self._add(flat, code)
        return [_bytes(code) for code in codes]

    def follow(self, payload: memoryview, first: bool) -> None:
        """Brings the neighbour's public value to where it says."""
        if first:
            torch._foreach_copy_(self.theirs, Parcel(self._layout, payload).flats)
            return
        at = 0
        for flat in self.theirs:
            size = self._squeeze.size(flat)
            self._add(flat, torch.frombuffer(bytearray(payload[at : at + size]), dtype=torch.uint8))
            at += size

    def way(self) -> Flats:
        """How far to go from ours towards theirs, to be taken away from ours. The neighbour finds the opposite."""
        way = list(torch._foreach_sub(self.ours, self.theirs))
        torch._foreach_mul_(way, 0.5 * PART[self._squeeze.name])
        return way

    def _add(self, flat: Tensor, code: Tensor) -> None:
        part = torch.empty_like(flat)
        self._squeeze.decode(code, part)
        flat.add_(part)


def _bytes(flat: Tensor) -> memoryview:
    return flat.view(torch.uint8).numpy().data
