"""A worker and a server by hand: raw links and slots, no client, so that each message is in the test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.strategy import parse
from shoal.train.ps.layout import Layout, ParamInfo
from shoal.train.ps.place import Place
from shoal.train.ps.recipe import Recipe
from shoal.train.ps.serve import ParameterService
from shoal.train.ps.shard import Reader, Shard
from shoal.train.wire.host import Host, listen
from shoal.train.wire.link import Link, Pending, Reply
from shoal.train.wire.segment import Segment
from shoal.train.world import Peer

SECRET = b"secret of the attempt"
SGD = Recipe("SGD", ({"lr": 1.0, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},))


def layout_of(count: int = 1000, servers: int = 1, chunk_bytes: int = 1024, name: str = "weight") -> Layout:
    return Layout.of([ParamInfo(name, count, shape=(count,))], servers, chunk_bytes)


def place_of(folder: Path, strategy: str = "ps-async", workers: int = 2, index: int = 0, servers: int = 1) -> Place:
    """A place whose listener has yet to be made; the peers' ports are filled in by `serving`."""
    shared = folder / f"shared-{index}"
    shared.mkdir(parents=True, exist_ok=True)
    peers = tuple(Peer(f"server-{one}", one, f"node-{one}", "127.0.0.1", 0) for one in range(servers))
    return Place(
        index, f"node-{index}", "127.0.0.1", 0, SECRET, shared, folder / "outputs", parse(strategy), workers, peers,
        folder / "roster.json",
    )  # fmt: skip


@contextmanager
def serving(place: Place) -> Iterator[tuple[Host, ParameterService]]:
    """A server in this process, taking over what lies in its folder."""
    own = Host(place.secret, {}, listener=listen(place.host, place.port))
    service = ParameterService(place, own.hang_up)
    own.services["ps"] = service
    service.recover()
    service.start()
    with own:
        try:
            yield own, service
        finally:
            service.close("the test is over")


class Hand:
    """One worker of one space on one server."""

    def __init__(
        self, shared: Path, rank: int, layout: Layout, remote: bool = False, space: str = "0.0", server: int = 0
    ) -> None:
        self.rank, self.layout, self.remote, self.space = rank, layout, remote, space
        self.secret = SECRET
        self.part = layout.part(server)
        self.seq = self.clock = self.version = 0
        self.link: Link | None = None
        self.reader: Reader | None = None
        self.path = shared / f"grad-{space}-w{rank}"
        dtype = getattr(torch, layout.dtype)
        if remote:
            self.slot = torch.zeros(layout.count, dtype=dtype)
        else:
            self.slot = Segment.create(self.path, layout.bytes).tensor(dtype, 0, layout.count)

    def open(self, port: int, deadline: float = 30.0) -> Link:
        self.link = Link.open(
            "127.0.0.1", port, self.secret, service="ps", me=f"worker-{self.rank}", peer="server-0", deadline=deadline
        )
        return self.link

    def hello(self, port: int, values: float | None = 0.0, deadline: float = 30.0, **extra: Any) -> Mapping[str, Any]:
        """Opens a link, says hello, and gives the first values where there are none."""
        link = self.open(port, deadline)
        meta = {
            "kind": "hello", "space": self.space, "worker": self.rank, "layout": self.layout.to_json(),
            "applier": "step", "recipe": SGD.to_json(), "remote": self.remote, "version": self.version,
            "slot": None if self.remote else str(self.path), **extra,
        }  # fmt: skip
        told = link.ask(meta).meta
        if not told["initialised"] and values is not None:
            start = torch.full((self.part.count,), values, dtype=self.slot.dtype)
            link.ask({"kind": "init", "space": self.space}, [start.numpy().data.cast("B")])
        if told["segment"]:
            self.reader = Shard.reading(told["segment"])
        return told

    def lay(self, value: float | Tensor) -> None:
        self.slot.copy_(value) if isinstance(value, Tensor) else self.slot.fill_(value)

    def push(self, value: float | Tensor, **extra: Any) -> Reply:
        """Lays the gradient down and pushes it; blocks for the answer."""
        return self.begin(value, **extra).wait()

    def begin(self, value: float | Tensor, **extra: Any) -> Pending:
        self.lay(value)
        self.seq += 1
        self.clock += 1
        return self.send(**extra)

    def send(self, **extra: Any) -> Pending:
        """The push of now, once (more)."""
        return self.send_alone(self.payload() if self.remote else (), **extra)

    def send_alone(self, payload: Sequence[memoryview] = (), **extra: Any) -> Pending:
        assert self.link is not None
        meta = {"kind": "push", "space": self.space, "seq": self.seq, "base": self.version, "clock": self.clock}
        return self.link.begin({**meta, **extra}, payload)

    def payload(self) -> Sequence[memoryview]:
        own = self.slot[self.part.offset : self.part.offset + self.part.count]
        return [own.numpy().data.cast("B")]

    def read(self) -> Tensor:
        """The parameters of the part as the server has them now."""
        if self.reader is not None:
            out = torch.empty(self.part.count, dtype=self.slot.dtype)
            self.version = self.reader.copy([(out, 0, self.part.count)])
            return out
        assert self.link is not None
        reply = self.link.ask({"kind": "pull", "space": self.space})
        self.version = reply.meta["version"]
        return torch.frombuffer(bytearray(reply.payload), dtype=self.slot.dtype)

    def status(self) -> Mapping[str, Any]:
        assert self.link is not None
        told: Mapping[str, Any] = self.link.ask({"kind": "status"}).meta["spaces"][self.space]
        return told

    def close(self) -> None:
        if self.link is not None:
            self.link.close()


def all_equal(values: Tensor, part_of: Layout, server: int, expected: float) -> bool:
    """Every parameter has this value; what fills up cache lines stays zero."""
    part = part_of.part(server)
    return all(
        bool((values[one.offset - part.offset : one.offset - part.offset + one.count] == expected).all())
        for one in part.pieces
    )
