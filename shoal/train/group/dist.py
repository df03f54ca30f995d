"""The group over a network, where no two workers share memory: roll call for who is there, another
way for the numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shoal.train.group import calls
from shoal.train.group.lanes import pieces_of
from shoal.train.group.rollcall import Rollcall
from shoal.train.group.staging import count, flat, give_back, raw
from shoal.train.group.ways import Way, way
from shoal.train.seeing import EXCHANGE, Seeing

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.train.world import World


class DistGroup:
    """Implements `group.api.Group` over streams. Tensors of a GPU travel through host memory."""

    def __init__(self, across: Way, size: int, seeing: Seeing) -> None:
        self.rank = across.roll.rank
        self.size = size
        self._across = across
        self._seeing = seeing

    @classmethod
    def meet(cls, world: World, seeing: Seeing, name: str, patience: float) -> DistGroup:
        """Waits until all workers have come. WaitedTooLong or PeerLost that names who cannot be reached."""
        roll = Rollcall(world, name, seeing, patience)
        return cls(way(world, roll, patience), world.size, seeing)

    def members(self) -> tuple[int, ...]:
        return self._across.roll.members()

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        staged, copied = flat(tensor)
        sign = calls.sign(calls.REDUCTIONS[op], staged.dtype, count(staged))
        with self._seeing.spending(EXCHANGE):
            among = self._across.reduce(staged, op, 1, sign)
        if op == "mean":
            divide(staged, among)
        self._seeing.sent(moved := 2 * (among - 1) * staged.nbytes // among, moved)
        if copied:
            give_back(staged, tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        staged, copied = flat(tensor)
        with self._seeing.spending(EXCHANGE):
            sign = calls.sign(calls.BROADCAST, staged.dtype, count(staged), source)
            self._across.broadcast(staged, source, sign)
        self._seeing.sent(staged.nbytes, staged.nbytes)
        if copied and source != self.rank:
            give_back(staged, tensor)

    def gather(self, value: Any) -> list[Any]:
        data = json.dumps(value, separators=(",", ":")).encode()
        came = self._across.exchange(data, calls.sign(calls.GATHER))
        return [json.loads(one.data) for one in sorted(came, key=lambda one: one.rank)]

    def send(self, to: int, tensor: Tensor) -> None:
        post(self._across.roll, to, tensor)
        self._seeing.sent(tensor.nbytes)

    def receive(self, source: int, out: Tensor) -> None:
        take(self._across.roll, source, out)
        self._seeing.sent(0, out.nbytes)

    def leave(self) -> None:
        self._across.close()
        self._across.roll.leave()


def divide(staged: Any, by: int) -> None:
    """In place; whole numbers are rounded down."""
    if by > 1:
        how, piece = pieces_of(staged)
        how.divide(piece, by)


def post(roll: Rollcall, to: int, tensor: Tensor) -> None:
    staged, _ = flat(tensor)
    roll.post(to, calls.sign(calls.SEND, staged.dtype, count(staged)), raw(staged))


def take(roll: Rollcall, source: int, out: Tensor) -> None:
    staged, copied = flat(out)
    data = roll.take(source, calls.sign(calls.SEND, staged.dtype, count(staged)))
    raw(staged)[:] = data
    if copied:
        give_back(staged, out)
