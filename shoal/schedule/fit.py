"""Whether a gang fits, and where: whole or not at all.

Slots are packed onto nodes in order, so servers sit beside workers unless a role is to be kept apart. Equal slots
remember how far they got: a gang of n slots on m nodes costs n + m steps, not n × m. CPUs are counted in
thousandths, so that a hundred shares of 0.01 are exactly one core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal._lib.quantities import format_size
from shoal.errors import DoesNotFit
from shoal.job.nodes import Berth, Node, Placement
from shoal.job.plan import Slot

_MILLI = 1000


@dataclass(slots=True)
class Room:
    """What is free on one node while a decision is being made."""

    node: Node
    cpu: int
    memory: int
    gpus: list[int]
    shares: int
    roles: set[str] = field(default_factory=set)  # of the job being placed
    apart: bool = False  # one of them wants the node for itself
    berths: int = 0

    @classmethod
    def of(cls, node: Node) -> Room:
        return cls(node, milli(node.cpus), node.memory, [gpu.index for gpu in node.gpus], node.shares)

    def copy(self) -> Room:
        return Room(self.node, self.cpu, self.memory, list(self.gpus), self.shares, set(), False, self.berths)

    def gpus_for(self, slot: Slot) -> list[int]:
        """The free GPUs of the wanted type, as many as asked for, or fewer when there are not enough."""
        wanted, kind = slot.resources.gpu, slot.resources.gpu_type
        if not wanted:
            return []
        types = {gpu.index: gpu.type for gpu in self.node.gpus}
        return [index for index in self.gpus if kind in (None, types[index])][:wanted]

    def admits(self, slot: Slot, count_shares: bool = True) -> bool:
        asked = slot.resources
        if asked.cpu is None:
            if count_shares and self.shares < 1:
                return False
        elif milli(asked.cpu) > self.cpu:
            return False
        if (asked.memory or 0) > self.memory or len(self.gpus_for(slot)) < asked.gpu:
            return False
        if any(self.node.labels.get(name) != value for name, value in slot.labels):
            return False
        others = self.roles - {slot.role}
        return not (others and (slot.apart or self.apart))

    def take(self, slot: Slot) -> Berth:
        gpus = self.gpus_for(slot)
        self._subtract(slot, gpus)
        self.roles.add(slot.role)
        self.apart = self.apart or slot.apart
        return Berth(slot, self.node.name, tuple(gpus))

    def hold(self, berth: Berth) -> None:
        """Accounts for a berth that was given earlier."""
        self._subtract(berth.slot, berth.gpus)

    def _subtract(self, slot: Slot, gpus: Iterable[int]) -> None:
        asked = slot.resources
        if asked.cpu is None:
            self.shares -= 1
        else:
            self.cpu -= milli(asked.cpu)
        self.memory -= asked.memory or 0
        taken = set(gpus)
        self.gpus = [index for index in self.gpus if index not in taken]
        self.berths += 1


def milli(cpus: float) -> int:
    return round(cpus * _MILLI)


def rooms(nodes: Iterable[Node], held: Iterable[Placement]) -> dict[str, Room]:
    """What is free on each node once everything held is taken off."""
    found = {node.name: Room.of(node) for node in nodes}
    for placement in held:
        for berth in placement:
            if berth.node in found:
                found[berth.node].hold(berth)
    return found


def place(slots: Iterable[Slot], free: Mapping[str, Room], count_shares: bool = True) -> Placement | None:
    """A whole placement, or None. `free` changes only when it fits. Slots not needed are left out when full."""
    trial = {name: room.copy() for name, room in free.items()}
    order = list(trial.values())
    # Sharing is bounded so that a thousand jobs that ask for nothing do not start at once; a gang that alone is larger
    # than the bound may still have the empty machine.
    if count_shares and not any(room.berths for room in order):
        count_shares = False
    progress: dict[tuple[object, ...], int] = {}
    berths: list[Berth] = []
    for slot in sorted(slots, key=_turn):
        shape = (slot.role, slot.resources, slot.apart, slot.labels)
        index = progress.get(shape, 0)
        while index < len(order) and not order[index].admits(slot, count_shares):
            index += 1
        progress[shape] = index
        if index == len(order):
            if slot.needed:
                return None
            continue
        berths.append(order[index].take(slot))
    for name, room in trial.items():
        _commit(free[name], room)
    return tuple(berths)


def _turn(slot: Slot) -> tuple[object, ...]:
    """What is needed goes first, and the large before the small: gaps are left that something still fits into."""
    asked = slot.resources
    return not slot.needed, -asked.gpu, -(asked.cpu or 0.0), -(asked.memory or 0)


def _commit(room: Room, changed: Room) -> None:
    room.cpu, room.memory, room.gpus = changed.cpu, changed.memory, changed.gpus
    room.shares, room.berths = changed.shares, changed.berths


def check_possible(slots: Iterable[Slot], nodes: Iterable[Node]) -> None:
    """DoesNotFit, saying what exists, when the gang would not even fit on empty nodes."""
    needed = [slot for slot in slots if slot.needed]
    every = list(nodes)
    if place(needed, rooms(every, ()), count_shares=False) is not None:
        return
    raise DoesNotFit(f"{_too_large(needed, every)}; {describe(every)}")


def _too_large(slots: list[Slot], nodes: list[Node]) -> str:
    """The first thing that cannot be: one process larger than any node, else all of them together."""
    for slot in slots:
        asked = slot.resources
        if asked.cpu and all(asked.cpu > node.cpus for node in nodes):
            return f"{slot.role} asks for {asked.cpu:g} CPUs"
        if asked.memory and all(asked.memory > node.memory for node in nodes):
            return f"{slot.role} asks for {format_size(asked.memory)} of memory"
        if asked.gpu and all(len(Room.of(node).gpus_for(slot)) < asked.gpu for node in nodes):
            kind = f" of type {asked.gpu_type}" if asked.gpu_type else ""
            return f"{slot.role} asks for {asked.gpu} GPUs{kind}"
        if slot.labels and all(any(node.labels.get(k) != v for k, v in slot.labels) for node in nodes):
            return f"{slot.role} asks for a node labelled {', '.join(f'{k}={v}' for k, v in slot.labels)}"
    apart = ", kept apart by role" if any(slot.apart for slot in slots) else ""
    return f"the {len(slots)} processes together ask for {asked_for(slots)}{apart}"


def asked_for(slots: Iterable[Slot]) -> str:
    """What they ask for in all, in words; what nobody asks for is left out."""
    every = list(slots)
    cpu = sum(slot.resources.cpu or 0.0 for slot in every)
    memory = sum(slot.resources.memory or 0 for slot in every)
    gpu = sum(slot.resources.gpu for slot in every)
    words = [
        f"{cpu:g} CPUs" if cpu else "",
        f"{format_size(memory)} of memory" if memory else "",
        f"{gpu} GPUs" if gpu else "",
    ]
    return ", ".join(filter(None, words)) or "a share of the node"


def describe(nodes: Iterable[Node]) -> str:
    """What exists, in one line."""
    parts = [f"{n.name} has {n.cpus:g} CPUs, {format_size(n.memory)}, {len(n.gpus)} GPUs" for n in nodes]
    shown = "; ".join(parts[:4]) + (f"; and {len(parts) - 4} more nodes" if len(parts) > 4 else "")
    return f"what exists: {shown or 'no nodes'}"
