"""Push-sum (SGP: Assran, Loizou, Ballas, Rabbat, ICML 2019, 1811.10792), without waiting for what neighbours push.

At a turn a worker keeps one share of its values and of its weight and sends one to each neighbour; whoever receives one
adds it. The model is x/w. Invariant: Σx and Σw, with what is under way, are conserved, because a share counts as sent
only when it was answered for: each carries a number, and after a broken link the sender asks which number arrived last
and takes the share back if it did not. From one who is gone only the weight comes back (`Replica.regain`): it took
seconds to find out, and the values of then would undo what was learned since. Cost: M bytes for each neighbour and
turn.

A slow worker would gather the mass of all fast ones (its w would grow with every push it gets between two of its own,
theirs would shrink, and with w the effective rate changes). So it takes no more than TAKES from each between two steps
of its own and refuses the rest, which stays with its sender.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from shoal.train.compress import Halves
from shoal.train.errors import PeerLost
from shoal.train.gossip.parcel import Parcel
from shoal.train.gossip.replica import Flats
from shoal.train.topology import Topology
from shoal.train.wire.frames import Buffer, Meta

if TYPE_CHECKING:
    from shoal.train.gossip.space import Space

KIND, LAST, REFUSED = "push", "last", "refused"
TAKES = 2  # pushes of one neighbour between two steps of one's own


class Push:
    """The mode `push` of one space."""

    def __init__(self, space: Space, topology: Topology, squeeze: Halves | None) -> None:
        self.space, self.topology, self.squeeze = space, topology, squeeze
        self._parcels: dict[int, Parcel] = {}
        self._numbers: Counter[int] = Counter()  # of the last push to each neighbour
        self._arrived: dict[int, tuple[int, int]] = {}  # neighbour → its start, and the last number that came from it
        self._taken: Counter[int] = Counter()  # since the last step
        self._lock = threading.Lock()
        self._left = 2  # shares among which what is here now is to be divided

    def targets(self, turn: int) -> list[int]:
        members = self.space.mesh.members
        near = [
            rank
            for rank in self.topology.out(members.me, members.present(), turn)
            if not self.space.couriers.busy(rank)
        ]
        with self._lock:
            self._taken.clear()
            self._left = len(near) + 1
        return near

    def carry(self, rank: int) -> None:
        with self._lock:
            part, self._left = 1 / self._left, max(2, self._left - 1)  # equal shares, given one after another
        self._carry(rank, part, last=False)

    def _carry(self, rank: int, part: float, last: bool) -> bool:
        """Gives a share away. What is not known to have arrived comes back. Whether it arrived."""
        replica, number = self.space.replica, self._numbers[rank] + 1
        piece = self.space.slots.own(rank, self.space.mesh.members.peers[rank].node)
        flats = piece[1] if piece else self._parcels.setdefault(rank, Parcel(replica.layout)).flats
        weight = self._give(flats, part, squeezed=piece is None)
        self._numbers[rank] = number
        arrived, gone = False, False
        try:
            meta = {
                "kind": KIND,
                "number": number,
                "weight": weight,
                "start": self.space.mesh.members.start,
                "last": last,
            }
            if piece:
                done = self.space.ask(rank, {**meta, "slot": piece[0]})
            else:
                done = self.space.ask(rank, meta, self._coded(flats))
            arrived = bool(done["kind"] == KIND)
        except PeerLost:
            last_there = self._last_there(rank)
            arrived, gone = last_there >= number, last_there < 0
            raise
        finally:
            if gone:
                replica.regain(flats, weight)
            elif not arrived:
                replica.receive(flats, weight)
        return arrived

    def _give(self, flats: Flats, part: float, squeezed: bool) -> float:
        """A share, taken out. Where it travels in sixteen bits, what these cannot hold stays here."""
        replica = self.space.replica
        weight = replica.give(part, flats)
        if squeezed and self.squeeze is not None:
            rest = [one.clone() for one in flats]
            for one, error in zip(flats, rest, strict=True):
                one.copy_(self.squeeze.halve(one))
                error.sub_(one)
            replica.receive(rest, 0.0)
        return weight

    def _coded(self, flats: Flats) -> list[Buffer]:
        coded = flats if self.squeeze is None else [self.squeeze.halve(one) for one in flats]
        return [one.view(torch.uint8).numpy().data for one in coded]

    def _last_there(self, rank: int) -> int:
        """The link broke. If the neighbour is there all the same, it knows which number came last; -1 if it is gone."""
        meta = {"kind": LAST, "room": self.space.name, "start": self.space.mesh.members.start}
        answer = self.space.mesh.try_ask(rank, meta, reach=0.5)
        return -1 if answer is None else int(answer.get("number", 0))

    def handle(self, rank: int, meta: Meta, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]:
        start = int(meta["start"])
        with self._lock:
            known, last = self._arrived.get(rank, (start, 0))
            last = last if known == start else 0
            if meta["kind"] == LAST:
                return {"kind": LAST, "number": last}, ()
            if int(meta["number"]) <= last:
                return {"kind": KIND}, ()  # it came before, and its answer was lost
            if self._taken[rank] >= TAKES and not meta["last"]:
                return {"kind": REFUSED}, ()
            flats = self.space.slots.open(str(meta["slot"])) if "slot" in meta else self._decoded(payload)
            self.space.replica.receive(flats, float(meta["weight"]))
            self._taken[rank] += 1
            self._arrived[rank] = (start, int(meta["number"]))
        return {"kind": KIND}, ()

    def _decoded(self, payload: memoryview) -> Flats:
        layout = self.space.replica.layout
        if self.squeeze is None:
            return Parcel(layout, payload).flats
        flats, at = layout.empty(), 0
        for flat in flats:
            size = self.squeeze.size(flat)
            if size:
                self.squeeze.decode(payload[at : at + size], flat)
            at += size
        return flats

    def lost(self, rank: int) -> None:
        self._parcels.pop(rank, None)

    def part(self) -> None:
        """Before leaving: everything goes to a neighbour, so that the sums stay with those who go on."""
        members = self.space.mesh.members
        for rank in filter(self.space.mesh.linked, members.present()):
            with suppress(PeerLost):
                if not self.space.couriers.busy(rank) and self._carry(rank, 1.0, last=True):
                    return
