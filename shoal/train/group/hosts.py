"""The group over several machines with several workers each: they reduce in shared memory first, and one of each
machine, the lowest that is still there, carries the sum to the others and brings theirs back.

What crosses the network is one tensor per machine, whatever the number of workers on it. When somebody dies the group
is over on all machines (PeerLost, from then on): make another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.train.errors import NoRoom, PeerLost
from shoal.train.group import calls
from shoal.train.group.dist import divide, post, take
from shoal.train.group.rollcall import Rollcall
from shoal.train.group.shm import SharedGroup
from shoal.train.group.staging import count, flat, give_back
from shoal.train.group.ways import Way, way
from shoal.train.seeing import EXCHANGE, Seeing
from shoal.train.wire import segment

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.train.world import World

T = TypeVar("T")


class HostsGroup:
    """Implements `group.api.Group` over `SharedGroup` and a `Way`. A machine with one worker has no `local`."""

    def __init__(self, local: SharedGroup | None, across: Way, seats: Sequence[Sequence[int]], seeing: Seeing) -> None:
        self.rank = across.roll.rank
        self.size = sum(len(seat) for seat in seats)
        self._local, self._across, self._seeing = local, across, seeing
        self._seats = seats
        self._over: PeerLost | None = None
        if local is not None:
            local.attendance.also = across.roll.check  # a death elsewhere ends waits here

    @classmethod
    def meet(cls, world: World, seeing: Seeing, name: str, patience: float) -> HostsGroup:
        """NoRoom, on all machines, when one cannot hold the shared memory."""
        nodes: dict[str, list[int]] = {}
        for peer in world.workers:
            nodes.setdefault(peer.node, []).append(peer.index)
        local, refused = None, None
        try:
            local = _meet_here(world, nodes[world.node], seeing, name, patience)
        except NoRoom as no_room:
            refused = no_room
        roll = Rollcall(world, f"{name}-hosts", seeing, patience)
        if any(one.data for one in roll.arrive(calls.sign(calls.GATHER), 1, b"no room" if refused else b"")):
            roll.leave()
            if local is not None:
                local.leave()
            raise refused or NoRoom("another machine of the job has no room for shared memory; make it larger there")
        roll.sit(list(nodes.values()))
        return cls(local, way(world, roll, patience), list(nodes.values()), seeing)

    def members(self) -> tuple[int, ...]:
        """Of this machine as shared memory tells, which learns of a death first; of the others as they said."""
        near = {self.rank} if self._local is None else set(self._local.members())
        return tuple(one for one in self._across.roll.members() if one in near or not self._is_here(one))

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        staged, copied = flat(tensor)
        sign = calls.sign(calls.REDUCTIONS[op], staged.dtype, count(staged))
        self._whole(lambda: self._reduce(staged, op, sign))
        if copied:
            give_back(staged, tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        staged, copied = flat(tensor)
        self._whole(lambda: self._broadcast(staged, source))
        if copied and source != self.rank:
            give_back(staged, tensor)

    def gather(self, value: Any) -> list[Any]:
        return self._whole(lambda: self._gather(value))

    def send(self, to: int, tensor: Tensor) -> None:
        if self._is_here(to):
            self._near().send(to, tensor)
        else:
            post(self._across.roll, to, tensor)
            self._seeing.sent(tensor.nbytes)

    def receive(self, source: int, out: Tensor) -> None:
        if self._is_here(source):
            self._near().receive(source, out)
        else:
            take(self._across.roll, source, out)
            self._seeing.sent(0, out.nbytes)

    def leave(self) -> None:
        if self._local is not None:
            self._local.leave()
        self._across.close()
        self._across.roll.leave()

    def _reduce(self, staged: Tensor, op: str, sign: int) -> None:
        if self._local is not None:
            self._local.all_reduce(staged, "sum" if op == "mean" else op)
        present = self._present()
        if present[0] == self.rank:
            with self._seeing.spending(EXCHANGE):
                among = self._across.reduce(staged, op, len(present), sign)
            self._seeing.sent(2 * staged.nbytes, 2 * staged.nbytes)
            if op == "mean":
                divide(staged, among)
        else:
            self._across.roll.stand_by()
        if self._local is not None:
            self._local.broadcast(staged, present[0])

    def _broadcast(self, staged: Tensor, source: int) -> None:
        if self._local is not None:
            if self._is_here(source):
                self._local.broadcast(staged, source)
            else:
                self._local.gather(None)  # agrees on who is here
        present = self._present()
        if present[0] == self.rank:
            sign = calls.sign(calls.BROADCAST, staged.dtype, count(staged), source)
            self._across.broadcast(staged, self.rank if self._is_here(source) else None, sign)
        else:
            self._across.roll.stand_by()
        if self._local is not None and not self._is_here(source):
            self._local.broadcast(staged, present[0])

    def _gather(self, value: Any) -> list[Any]:
        mine = self._local.gather(value) if self._local is not None else [value]
        present = self._present()
        merged: dict[str, Any] = {}
        if present[0] == self.rank:
            data = json.dumps(dict(zip(map(str, present), mine, strict=True)), separators=(",", ":")).encode()
            for one in self._across.exchange(data, calls.sign(calls.GATHER)):
                merged.update(json.loads(one.data))
        else:
            self._across.roll.stand_by()
        if self._local is not None:
            merged = self._local.gather(merged)[0]
        return [merged[key] for key in sorted(merged, key=int)]

    def _present(self) -> tuple[int, ...]:
        """Who of this machine took part in the last collective here."""
        return (self.rank,) if self._local is None else self._local.present

    def _is_here(self, other: int) -> bool:
        return any(self.rank in seat and other in seat for seat in self._seats)

    def _near(self) -> SharedGroup:
        if self._local is None:
            raise ValueError(f"worker-{self.rank} cannot send to itself")
        return self._local

    def _whole(self, act: Callable[[], T]) -> T:
        if self._over is not None:
            raise PeerLost(f"this group is over since {self._over.message}; make another", self._over.who)
        try:
            return act()
        except PeerLost as lost:
            self._over = lost
            raise
        except BaseException:
            self._across.roll.give_up()
            raise


def _meet_here(world: World, here: Sequence[int], seeing: Seeing, name: str, patience: float) -> SharedGroup | None:
    if len(here) == 1:
        return None
    return SharedGroup.meet(folder(world), world.rank, here, name, seeing, patience)


def folder(world: World) -> Path:
    """Where the workers of this machine meet; NoRoom where they cannot."""
    if world.shared is None:
        raise NoRoom("this machine has no folder in shared memory for the job")
    if not segment.usable():
        raise NoRoom("this processor does not keep stores in order, so memory cannot be shared without locks")
    return world.shared
