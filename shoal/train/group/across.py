"""Sums and copies between machines: small ones ride on the roll call, large ones go by gloo.

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
from shoal.train.world import World

SMALL = 64 << 10  # bytes that ride on an arrival
NAMED_WITHIN = 0.4  # seconds after a stream broke until the dead one must be known


class Across:
    """One member's way to those of other machines. Tensors are flat and in host memory."""

    def __init__(self, world: World, roll: Rollcall, patience: float) -> None:
        self.roll = roll
        self._host = world.workers[world.rank].host
        self._patience = patience
        self._among: tuple[int, ...] = ()
        self._net: ProcessGroupGloo | None = None
        self._store: TCPStore | None = None
        # gloo left open aborts about one interpreter exit in ten ("terminate called without an active exception").
        atexit.register(self.close)

    def reduce(self, whole: Tensor, weight: int, sign: int) -> int:
        """In place, the sum over who comes. Returns the sum of their weights."""
        if whole.nbytes <= SMALL:
            came = self.roll.arrive(sign, weight, _bytes(whole))
            parts = [_tensor(one.data, whole.dtype) for one in sorted(came, key=_by_rank)]
            whole.copy_(parts[0])
            for part in parts[1:]:
                whole.add_(part)
        else:
            came = self.roll.arrive(sign, weight)
            if len(came) > 1:
                self._go(came, lambda net: net.allreduce([whole], _SUM))
        return sum(one.weight for one in came)

    def broadcast(self, whole: Tensor, source: int | None, sign: int) -> None:
        """In place, the values of the one seat that names itself as the source: its weight is 1, that of others 0."""
        mine = source == self.roll.rank
        small = whole.nbytes <= SMALL
        came = self.roll.arrive(sign, int(mine), _bytes(whole) if mine and small else b"")
        root = next((one for one in came if one.weight), None)
        if root is None:
            raise PeerLost("the source of a broadcast has left; broadcast from a member", [])
        if small:
            whole.copy_(_tensor(root.data, whole.dtype))
        elif len(came) > 1:
            options = dist.BroadcastOptions()
            options.rootRank = sorted(one.rank for one in came).index(root.rank)
            self._go(came, lambda net: net.broadcast([whole], options))

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


_SUM = dist.AllreduceOptions()


def _by_rank(one: Arrival) -> int:
    return one.rank


def _bytes(whole: Tensor) -> bytes:
    return whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b""


def _tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
