"""The parameters of one optimizer in a gossip: its replica, its neighbours' threads, and what a step does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from shoal.train import compress
from shoal.train.api import Setting
from shoal.train.flat import Flat
from shoal.train.gossip.courier import Couriers
from shoal.train.gossip.mesh import Mesh
from shoal.train.gossip.pairs import Pairs
from shoal.train.gossip.parcel import Parcel
from shoal.train.gossip.push import Push
from shoal.train.gossip.replica import Replica
from shoal.train.gossip.slots import Slots
from shoal.train.seeing import EXCHANGE
from shoal.train.topology import Topology
from shoal.train.wire.frames import Buffer, Meta

SHORTEST = 0.02  # seconds a step always waits for the exchange before it
GRACE = 2.0  # seconds for what is under way when the training ends


class Mode(Protocol):
    """How neighbours mix."""

    def targets(self, turn: int) -> list[int]:
        """Whom to exchange with in this turn."""
        ...

    def carry(self, rank: int) -> None:
        """One exchange, in a courier's thread."""
        ...

    def handle(self, rank: int, meta: Meta, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]:
        """An exchange that a neighbour asked for, in a thread of its connection. Must not wait for anybody."""
        ...

    def lost(self, rank: int) -> None: ...

    def part(self) -> None:
        """What is left to do before this worker leaves."""
        ...


class Space:
    """A Room of the mesh. Exchanges begin after a step and run beside the next one; a step waits for the one before it
    no longer than it took itself, so that a neighbour without an answer at most halves the speed, and only for a while.
    """

    def __init__(self, setting: Setting, mesh: Mesh, name: str, tensors: Sequence[Tensor]) -> None:
        self.name, self.mesh, self.setting = name, mesh, setting
        self.replica = Replica(Flat(tensors, on_host=True))
        self.slots = Slots(setting.world, name, self.replica.layout, mesh.members.start)
        self.couriers = Couriers(self._carry)
        self.steps = 0
        self.answers = False  # neighbours find it in the mesh
        self.mode = _mode(self, setting.options)
        self._parcels: dict[int, Parcel] = {}  # where the payloads of each caller land
        self._since = setting.seeing.clock()

    def step(self) -> None:
        seeing, every = self.setting.seeing, int(self.setting.options["every"])
        took, due = seeing.clock() - self._since, (self.steps + 1) % every == 0
        if due and self.couriers.any():
            with seeing.waiting_for(f"an exchange of space {self.name} with {self.couriers.names()}"):
                free = self.couriers.wait(max(SHORTEST, took))
        else:
            free = self.couriers.wait(0.0)
        self.steps += 1
        with seeing.spending(EXCHANGE):
            seeing.stale(self.replica.step())
            if due and free:
                self.couriers.begin(self.mode.targets(self.steps // every - 1))
        self._since = seeing.clock()

    def ask(self, rank: int, meta: Meta, payload: Sequence[Buffer] = (), into: memoryview | None = None) -> Meta:
        """Asks a neighbour's room of the same name, and counts the bytes, wherever they lie."""
        done = self.mesh.ask(rank, {**meta, "room": self.name}, payload, into)
        shared = self.replica.layout.bytes if "slot" in meta else 0
        sent = shared or sum(memoryview(part).nbytes for part in payload)
        self.setting.seeing.sent(sent, shared if meta["kind"] == "pair" and shared else done.payload.nbytes)
        return done.meta

    def _carry(self, rank: int) -> None:
        self.mode.carry(rank)

    def handle(self, rank: int, meta: Meta, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]:
        try:
            return self.mode.handle(rank, meta, payload)
        except FileNotFoundError:  # its slot: it has heard that we leave, and given up on this exchange already
            return {"kind": "closed"}, ()

    def landing(self, rank: int, meta: Meta, size: int) -> memoryview | None:
        if size != self.replica.layout.bytes:
            return None
        return self._parcels.setdefault(rank, Parcel(self.replica.layout)).bytes

    def lost(self, rank: int) -> None:
        self._parcels.pop(rank, None)
        self.slots.lost(rank)
        self.mode.lost(rank)

    def finish(self) -> None:
        self.couriers.wait(GRACE)
        self.replica.step()  # what this worker ends with; what comes later belongs to those who go on
        self.mode.part()
        self.couriers.close(GRACE)

    def close(self) -> None:
        self.slots.close()


def _mode(space: Space, options: Mapping[str, Any]) -> Mode:
    pushes = options["mode"] == "push"
    topology = Topology.read(options["topology"], options["graph"], space.setting.world.size, arrows=pushes)
    squeeze = compress.make(options)
    if not pushes:
        return Pairs(space, topology, squeeze)
    assert squeeze is None or isinstance(squeeze, compress.Halves), "refused when the strategy was read"
    return Push(space, topology, squeeze)
