"""How a gossip begins, and how a worker comes into one that has begun: somebody's values are everybody's first.

Where nobody has begun, the lowest rank waits until all are there, finds that they train the same thing, lets them take
its values, and begins. Where somebody has, a newcomer takes that one's, whatever its rank.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train.errors import Disagreement, PeerLost, WaitedTooLong
from shoal.train.gossip.mesh import Mesh
from shoal.train.gossip.parcel import Parcel
from shoal.train.gossip.replica import Replica
from shoal.train.seeing import Seeing
from shoal.train.sync import alike
from shoal.train.wire.frames import Buffer, Meta

PATIENCE = 300.0  # seconds for all workers to come
ALONE = 2.0  # seconds after which others are asked when the lowest rank cannot be reached
REACH, PAUSE = 0.25, 0.02  # seconds for one try to reach a worker, and between two rounds of tries


class Hall:
    """The room of a whole model: answers who has begun, and with what."""

    def __init__(
        self, name: str, mesh: Mesh, model: nn.Module, optimizers: Sequence[Optimizer], replicas: Sequence[Replica]
    ) -> None:
        self.name, self.mesh, self.replicas = name, mesh, replicas
        self.begun = False
        self.under_way = False  # its values are trained ones, no matter whose training that was
        self.joined = False  # so were those that it took
        self._took: set[int] = set()  # who has taken the values of this worker
        self._wrong: str | None = None  # how this model differs from another worker's
        self._rows = alike.describe(model, optimizers)
        self._tensors = [one.detach() for one in alike.everything(model)]

    def begin(self, seeing: Seeing, patience: float = PATIENCE) -> None:
        """Returns when training may begin, with the values that all begin with. WaitedTooLong names who is missing,
        Disagreement the first difference between two models."""
        until = time.monotonic() + patience
        source = self._source(seeing, until, patience)
        self._check()
        if source is not None:
            self._pull(source)
            self.begun = True
            self.mesh.spread()  # whoever comes later is news to the others
            return
        self.begun = True
        while missing := [rank for rank in self._others() if rank not in self._took]:
            with seeing.waiting_for(f"worker-{missing[0]} to take the first values"):
                self._give_up_after(until, patience, missing)

    def _check(self) -> None:
        """Another worker may have found the difference first, and be gone by now."""
        if self._wrong:
            raise Disagreement(self._wrong)

    def _others(self) -> list[int]:
        return [rank for rank in self.mesh.members.present() if rank != self.mesh.members.me]

    def _source(self, seeing: Seeing, until: float, patience: float) -> int | None:
        """The worker whose values to take; None when this one's are everybody's."""
        began, heard, all_others = time.monotonic(), set[int](), set(self._others())
        while True:
            self._check()
            others = self._others()
            first = not others or self.mesh.members.me < others[0]
            late = time.monotonic() - began > ALONE
            for rank in others if first or late else others[:1]:
                with seeing.waiting_for(f"worker-{rank} to begin"):
                    begun = self._ask(rank)
                if begun:
                    return rank
                if begun is not None:
                    heard.add(rank)
            if gone := sorted(all_others - set(self._others())):
                self._check()
                names = [f"worker-{rank}" for rank in gone]
                raise PeerLost(f"{', '.join(names)} ended before the training began; see what it said", names)
            missing = [rank for rank in others if rank not in heard]
            if first and not missing:
                return None
            self._give_up_after(until, patience, missing or others[:1])

    def _give_up_after(self, until: float, patience: float, missing: Sequence[int]) -> None:
        if time.monotonic() > until:
            names = [f"worker-{rank}" for rank in missing]
            raise WaitedTooLong(
                f"{', '.join(names)} did not come within {patience:g} s; does every worker wrap its model?", names
            )
        time.sleep(PAUSE)

    def _ask(self, rank: int) -> bool | None:
        """Whether that worker has begun; None when it cannot say yet."""
        answer = self.mesh.try_ask(rank, {"kind": "begun", "room": self.name, "rows": self._rows}, REACH)
        return bool(answer["begun"]) if answer is not None and "begun" in answer else None

    def _pull(self, rank: int) -> None:
        """Everything of that worker's model, also what is never exchanged; and what is, as it stands there now."""
        memory = memoryview(bytearray(sum(one.numel() * one.element_size() for one in self._tensors)))
        self.mesh.ask(rank, {"kind": "everything", "room": self.name}, (), memory)
        at = 0
        for one in self._tensors:
            size = one.numel() * one.element_size()
            if size:
                one.copy_(torch.frombuffer(memory[at : at + size], dtype=one.dtype).view(one.shape))
            at += size
        for number, replica in enumerate(self.replicas):
            parcel = Parcel(replica.layout)
            told = self.mesh.ask(rank, {"kind": "values", "room": self.name, "space": number}, (), parcel.bytes).meta
            replica.reset(parcel.flats)
            self.joined = self.under_way = self.joined or bool(told.get("under_way"))
        self.mesh.ask(rank, {"kind": "took", "room": self.name})

    def handle(self, rank: int, meta: Meta, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]:
        kind = meta["kind"]
        if kind == "everything":
            return {"kind": kind}, [_bytes(one) for one in self._tensors if one.numel()]
        if kind == "values":
            replica = self.replicas[int(meta["space"])]
            parcel = Parcel(replica.layout)
            replica.copy(parcel.flats)
            return {"kind": kind, "under_way": self.under_way}, [parcel.bytes]
        if kind == "took":
            self._took.add(rank)
            return {"kind": kind}, ()
        found = alike.difference(meta["rows"], self._rows, f"worker-{rank}", f"worker-{self.mesh.members.me}")
        if found:
            self._wrong = None if self.begun else found
            raise Disagreement(found)
        return {"kind": "begun", "begun": self.begun}, ()

    def landing(self, rank: int, meta: Meta, size: int) -> memoryview | None:
        return None

    def lost(self, rank: int) -> None:
        """Nothing is kept for anybody."""


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
