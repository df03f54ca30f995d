"""Between machines by gloo: what is too large to ride on the roll call.

gloo's process group is made for exactly those who take part, and made anew when they change; its store is kept by the
first of them, so nobody who left is needed. A broken stream becomes PeerLost with the name the roll call knows.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo, TCPStore

from shoal.train.errors import PeerLost, WaitedTooLong
from shoal.train.group.rollcall import Arrival, Rollcall
from shoal.train.group.ways import SMALL, call_source, reduce_at_once
from shoal.train.world import World

NAMED_WITHIN = 0.4  # seconds after a stream broke until the dead one must be known


class Across:
    """Implements `ways.Way` with torch.distributed."""

    def __init__(self, world: World, roll: Rollcall, patience: float) -> None:
        self.roll = roll
        self._host = world.workers[world.rank].host
        self._patience = patience
        self._among: tuple[int, ...] = ()
        self._net: ProcessGroupGloo | None = None
        self._store: TCPStore | None = None
        # gloo left open aborts about one interpreter exit in ten ("terminate called without an active exception").
        atexit.register(self.close)

    def reduce(self, whole: Any, op: str, weight: int, sign: int) -> int:
        if whole.nbytes <= SMALL:
            return reduce_at_once(self.roll, whole, op, weight, sign)
        came = self.roll.arrive(sign, weight)
        if len(came) > 1:
            options = dist.AllreduceOptions()
            options.reduceOp = _OPS[op]
            self._go(came, lambda net: net.allreduce([_tensor(whole)], options))
        return sum(one.weight for one in came)

    def broadcast(self, whole: Any, source: int | None, sign: int) -> None:
        root, came = call_source(self.roll, whole, source, sign)
        if whole.nbytes > SMALL and len(came) > 1:
            options = dist.BroadcastOptions()
            options.rootRank = sorted(one.rank for one in came).index(root.rank)
            self._go(came, lambda net: net.broadcast([_tensor(whole)], options))

    def exchange(self, data: bytes, sign: int) -> list[Arrival]:
        """Everybody's bytes."""
        return self.roll.arrive(sign, 1, data)

    def close(self) -> None:
        """Harmless twice."""
        atexit.unregister(self.close)
        self._drop()

    def _go(self, came: Sequence[Arrival], start: Callable[[Any], dist.Work]) -> None:
        with self._telling_whose_end():
            start(self._net_of(tuple(sorted(one.rank for one in came)))).wait()

    def _net_of(self, among: tuple[int, ...]) -> ProcessGroupGloo:
        if self._net is None or among != self._among:
            self._drop()
            self._net, self._among = self._make(among), among
        return self._net

    def _make(self, among: tuple[int, ...]) -> ProcessGroupGloo:
        """Collective among them."""
        place, limit = among.index(self.roll.rank), timedelta(seconds=self._patience)
        name = f"store of {','.join(map(str, among))} at {self.roll.number >> 32}"
        if place == 0:
            self._store = TCPStore(self._host, 0, is_master=True, timeout=limit, wait_for_workers=False)
            self.roll.note(among[1:], name, [self._host, self._store.port])
        else:
            host, port = self.roll.read(name, among[0])
            self._store = TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = limit
        return ProcessGroupGloo(self._store, place, len(among), options)

    def _drop(self) -> None:
        self._net, self._among = None, ()
        self._store = None

    @contextmanager
    def _telling_whose_end(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as failed:
            self._drop()  # closes our streams too: who waits for us learns at once
            self.roll.await_death(NAMED_WITHIN)
            text = str(failed).strip().splitlines()[0][:160]
            if "imed out" in text:
                raise WaitedTooLong(f"gloo waited too long: {text}; see what the others are doing") from failed
            raise PeerLost(f"a stream between machines broke: {text}; see the logs of the others") from failed


_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


def _tensor(whole: Any) -> Tensor:
    return whole if isinstance(whole, Tensor) else torch.from_numpy(whole)
