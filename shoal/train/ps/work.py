"""How an order is carried out so that it happens exactly once, whenever the process dies.

The order is written down; then, chunk by chunk, what will change is journaled, the chunk is written, and the count of
finished chunks goes up. The next process restores at most one chunk, does it again, and goes on. The pushes are still
in their slots then: no worker may touch its slot before it is answered.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.train.ps.applier import ELASTIC, Applier, Cut
from shoal.train.ps.beside import Beside, in_chunks
from shoal.train.ps.header import BUSY, NEXT, USED
from shoal.train.ps.journal import Journal
from shoal.train.ps.memory import Memory
from shoal.train.ps.orders import Apply, Hold

Slots = Mapping[int, Tensor]  # worker → what it pushed: flat over the part (part.count elements of the layout's dtype)
Task = Apply | Hold


class Work:
    """Carries out what changes parameters, state or what is held."""

    def __init__(self, memory: Memory, cut: Cut, applier: Applier, beside: Beside) -> None:
        self._header, self._journal = memory.header, Journal(memory)
        self._part, self._dtype = memory.part, memory.dtype
        self._kind: str = memory.description["applier"]
        self._params, self._applier, self._beside = cut, applier, beside
        self._known: dict[int, tuple[Tensor, Cut]] = {}
        self.slots: dict[int, Cut] = {}  # of the order at hand
        self.held: Cut | None = None

    def read(self, worker: int) -> Cut | None:
        return self._beside.read_cut(worker)

    def begin(self, order: Task, slots: Slots) -> None:
        """All of an order. KeyError, with nothing changed, if a slot is missing."""
        if self._header[BUSY]:
            raise RuntimeError("an order before this one was cut off; recover or abandon it first")
        self._gather(order, slots)
        self._header.intend(order)
        self._go_on(order)

    def finish(self, order: Task, slots: Slots) -> bool:
        """The rest of an order that was cut off. False, with nothing done, while a slot it needs is missing."""
        if any(worker not in slots for worker in _workers(order)):
            return False
        self._gather(order, slots)
        self._undo(order)
        self._go_on(order)
        return True

    def abandon(self, order: Task) -> str:
        """No more of an order that was cut off; says what became of it."""
        done, chunks = self._header[NEXT], len(self._params)
        who = ", ".join(f"worker-{worker}" for worker in _workers(order))
        self._undo(order)
        if done == 0:
            self._header.cancel()
            return f"an update of {who} was cut off before its first chunk was whole: it is undone"
        self._header.finish(order)
        return f"an update of {who} was cut off after {done} of {chunks} chunks: the rest of it is lost"

    def forget(self, worker: int) -> None:
        """Its slot goes away."""
        self._known.pop(worker, None)
        self.slots.pop(worker, None)

    def _go_on(self, order: Task) -> None:
        with torch.no_grad():
            for index in range(self._header[NEXT], len(self._params)):
                before = self._journal.open(index, self._changing(index, order))
                if isinstance(order, Apply):
                    self._applier.write(index, order, self, before)
                else:
                    self._hold(index, order)
                self._journal.close(index)
        self._header.finish(order)

    def _hold(self, index: int, order: Hold) -> None:
        one, held = order.contribution, self._beside.held_cut()[index]
        gradient = self.slots[one.worker][index]
        if self._header[USED]:
            held.add_(gradient, alpha=one.weight)
        else:
            torch.mul(gradient, one.weight, out=held)

    def _changing(self, index: int, order: Task) -> list[Tensor]:
        """What the order will change of a chunk. Nothing where all of it is overwritten whatever it was."""
        if isinstance(order, Hold):
            return [self._beside.held_cut()[index]] if self._header[USED] else []
        if self._kind == ELASTIC and order.contributions[0].worker not in self.slots:
            return [self._params[index]]  # abandoned: there is no slot to restore
        return self._applier.changes(index, order, self)

    def _undo(self, order: Task) -> None:
        index = self._header[NEXT]
        if index < len(self._params):
            self._journal.rewind()
            with torch.no_grad():
                self._journal.undo(self._changing(index, order))

    def _gather(self, order: Task, slots: Slots) -> None:
        self.slots = {worker: self._cut(worker, slots[worker]) for worker in _workers(order)}
        self.held = self._beside.held_cut() if isinstance(order, Apply) and order.held else None

    def _cut(self, worker: int, slot: Tensor) -> Cut:
        """A slot as chunks; one that was seen before is not cut again."""
        known = self._known.get(worker)
        if known is None or known[0] is not slot:
            if slot.numel() != self._part.count or slot.dtype != self._dtype:
                raise ValueError(
                    f"worker-{worker} pushed {slot.numel()} elements of {slot.dtype}; "
                    f"this part has {self._part.count} of {self._dtype}: give the slot's range of the part"
                )
            known = self._known[worker] = (slot, in_chunks(slot, self._part))
        return known[1]


def _workers(order: Task) -> list[int]:
    return [one.worker for one in (order.contributions if isinstance(order, Apply) else (order.contribution,))]
