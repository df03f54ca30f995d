"""Averaging in pairs (AD-PSGD: Lian, Zhang, Zhang, Liu, ICML 2018, 1710.06952).

An active worker calls a passive neighbour with its values; both move half the way towards each other, by the same
difference. The called one answers in a thread of its own and waits for nobody while it does, so no circle of waits can
form, whoever calls whom. Invariant: the sum over all workers changes by nothing but the changes of their trainings.
Cost: 2M bytes an exchange.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.train.compress import Compressor, TopK
from shoal.train.errors import Disagreement
from shoal.train.gossip.parcel import Parcel
from shoal.train.gossip.public import Public
from shoal.train.gossip.sparse import Sparse
from shoal.train.topology import ONE_PEER, Topology
from shoal.train.wire.frames import Buffer, Meta

if TYPE_CHECKING:
    from shoal.train.gossip.space import Space

KIND = "pair"


class Pairs:
    """The mode `pairs` of one space."""

    def __init__(self, space: Space, topology: Topology, squeeze: Compressor | None) -> None:
        self.space, self.topology, self.squeeze = space, topology, squeeze
        self.sparse = Sparse(space.replica, squeeze) if isinstance(squeeze, TopK) else None
        self._random = random.Random(f"{space.name} of worker {space.mesh.members.me}")
        self._parcels: dict[int, Parcel] = {}  # neighbour → what is sent to it and comes back
        self._public: dict[tuple[int, bool], Public] = {}  # neighbour, and whether we call it

    def targets(self, turn: int) -> list[int]:
        """Whom to call in this turn: one neighbour, if this worker is active."""
        near = self._near()
        if self.topology.name == ONE_PEER:
            return [near[turn % len(near)]] if near else []
        free = [rank for rank in near if not self.space.couriers.busy(rank)]
        return [self._random.choice(free)] if free else []

    def carry(self, rank: int) -> None:
        """One exchange that this worker asked for."""
        space, replica = self.space, self.space.replica
        piece = space.slots.own(rank, space.mesh.members.peers[rank].node)
        if piece is not None:
            name, flats = piece
            replica.copy(flats)
            done = space.ask(rank, {"kind": KIND, "slot": name})
        elif self.sparse is not None:
            self._carry_sparse(rank, self.sparse)
            return
        elif self.squeeze is not None:
            self._carry_squeezed(rank, self.squeeze)
            return
        else:
            parcel = self._parcels.setdefault(rank, Parcel(replica.layout))
            flats = replica.copy(parcel.flats)
            done = space.ask(rank, {"kind": KIND}, [parcel.bytes], parcel.bytes)
        if done["kind"] == KIND:
            replica.accept(flats)

    def handle(self, rank: int, meta: Meta, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]:
        """One exchange that a neighbour asked for."""
        replica = self.space.replica
        if "slot" in meta:
            replica.answer(self.space.slots.open(str(meta["slot"])))
            return {"kind": KIND}, ()
        if "sparse" in meta and self.sparse is not None:
            places, rest = self.sparse.unpack_places(payload)
            return {"kind": KIND}, self.sparse.pack(self.sparse.answer(places, self.sparse.unpack_values(rest)))
        if "first" in meta:
            return self._answer_squeezed(rank, bool(meta["first"]), payload)
        parcel = Parcel(replica.layout, payload)
        replica.answer(parcel.flats)
        return {"kind": KIND}, [parcel.bytes]

    def lost(self, rank: int) -> None:
        self._parcels.pop(rank, None)
        for calls in (True, False):
            self._public.pop((rank, calls), None)

    def part(self) -> None:
        """Before leaving: once more with every neighbour, so that what this worker has is a mean of many."""
        for rank in filter(self.space.mesh.linked, self._near()):
            self.space.couriers.begin([rank])
            self.space.couriers.wait(1.0)

    def _near(self) -> Sequence[int]:
        members = self.space.mesh.members
        return self.topology.pairs(members.present()).get(members.me, ())

    def _carry_sparse(self, rank: int, sparse: Sparse) -> None:
        places, answer = sparse.pick(), memoryview(bytearray(sparse.size()))
        parts = sparse.pack(places, sparse.read(places))
        if self.space.ask(rank, {"kind": KIND, "sparse": True}, parts, answer)["kind"] == KIND:
            sparse.accept(places, sparse.unpack_values(answer))

    def _carry_squeezed(self, rank: int, squeeze: Compressor) -> None:
        """The first exchange over a link sends the whole values; then both sides know where the other stands."""
        replica = self.space.replica
        public = self._public.pop((rank, True), None)  # comes back only when both sides have moved alike
        first = public is None
        public = public or Public(replica.layout, squeeze)
        sent = public.advance(replica.copy(), first)
        answer = bytearray(public.size(first))
        done = self.space.ask(rank, {"kind": KIND, "first": first}, sent, memoryview(answer))
        if done["kind"] == KIND:
            public.follow(memoryview(answer), first)
            replica.accept(public.way())
            self._public[(rank, True)] = public

    def _answer_squeezed(self, rank: int, first: bool, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]:
        replica = self.space.replica
        if self.squeeze is None:
            raise Disagreement("a neighbour squeezes its values and this worker does not: give all the same strategy")
        public = None if first else self._public.get((rank, False))
        if public is None and not first:
            return {"kind": "closed"}, ()  # we have forgotten where it stands: it will begin anew
        public = public or Public(replica.layout, self.squeeze)
        public.follow(payload, first)
        sent = public.advance(replica.copy(), first)
        replica.accept(public.way())
        self._public[(rank, False)] = public
        return {"kind": KIND}, sent
