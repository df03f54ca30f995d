"""How numbers cross between machines: small ones ride on the roll call, large ones by gloo, or in a ring of messages
where there is no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol, cast

from shoal.train.errors import PeerLost
from shoal.train.group.lanes import pieces_of
from shoal.train.group.rollcall import Arrival, Rollcall
from shoal.train.group.staging import copy_of, raw
from shoal.train.world import World

SMALL = 64 << 10  # bytes that ride on an arrival


class Way(Protocol):
    """One member's way to those of other machines. Tensors and arrays are flat and in host memory."""

    roll: Rollcall

    def reduce(self, whole: Any, op: str, weight: int, sign: int) -> int:
        """In place, over who comes; a mean is left as a sum. Returns the sum of their weights."""
        ...

    def broadcast(self, whole: Any, source: int | None, sign: int) -> None:
        """In place, the values of the one seat that names itself as the source."""
        ...

    def exchange(self, data: bytes, sign: int) -> list[Arrival]:
        """Everybody's bytes."""
        ...

    def close(self) -> None:
        """Harmless twice."""
        ...


def way(world: World, roll: Rollcall, patience: float) -> Way:
    """gloo's where torch is installed."""
    if importlib.util.find_spec("torch") is None:
        from shoal.train.group.streams import Streams

        return Streams(roll)
    from shoal.train.group.across import Across

    return cast(Way, Across(world, roll, patience))


def reduce_at_once(roll: Rollcall, whole: Any, op: str, weight: int, sign: int) -> int:
    """Everybody's numbers ride on its arrival and are combined in the order of ranks."""
    how, mine = pieces_of(whole)
    came = sorted(roll.arrive(sign, weight, bytes(raw(whole))), key=lambda one: one.rank)
    raw(whole)[:] = came[0].data
    part = copy_of(whole)
    for one in came[1:]:
        raw(part)[:] = one.data
        how.combine("sum" if op == "mean" else op, mine, how.over(part), mine)
    return sum(one.weight for one in came)


def call_source(roll: Rollcall, whole: Any, source: int | None, sign: int) -> tuple[Arrival, Sequence[Arrival]]:
    """Begins a broadcast, and ends it when the values are small. Who the source is, its weight being 1 and that of the
    others 0, and who came."""
    mine = source == roll.rank
    small = whole.nbytes <= SMALL
    came = roll.arrive(sign, int(mine), bytes(raw(whole)) if mine and small else b"")
    root = next((one for one in came if one.weight), None)
    if root is None:
        raise PeerLost("the source of a broadcast has left; broadcast from a member", [])
    if small:
        raw(whole)[:] = root.data
    return root, came
