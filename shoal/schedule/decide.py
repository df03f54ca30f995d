"""The queue's rule: priority, then first come; gangs whole; nobody overtakes a job that could run.

A job that waits for room holds back everything behind it, so it cannot starve. A job that would not fit on empty
nodes (a node is missing) holds back nobody and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal._lib.quantities import format_size
from shoal.errors import DoesNotFit
from shoal.job.nodes import Node, Placement
from shoal.job.plan import Slot
from shoal.schedule.fit import Room, asked_for, check_possible, place, rooms


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job, in the order of the queue."""

    job: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Start:
    job: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Why:
    """Which rule holds a job back."""

    rule: str  # no_room | behind | impossible
    message: str
    behind: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    starts: tuple[Start, ...]
    why: dict[str, Why]


def decide(queue: Sequence[Waiting], nodes: Iterable[Node], held: Iterable[Placement]) -> Decision:
    """Starts as many as the rule allows; every other job gets its reason. The same input gives the same decision."""
    every = list(nodes)
    free = rooms(every, held)
    starts: list[Start] = []
    why: dict[str, Why] = {}
    blocker: str | None = None
    for waiting in queue:
        if blocker is not None:
            message = f"waits behind {blocker}, which is before it in the queue and waits for room"
            why[waiting.job] = Why("behind", message, blocker)
            continue
        placement = place(waiting.slots, free)
        if placement is not None:
            starts.append(Start(waiting.job, placement))
            continue
        why[waiting.job] = _explain(waiting, every, free)
        if why[waiting.job].rule == "no_room":
            blocker = waiting.job
    return Decision(tuple(starts), why)


def _explain(waiting: Waiting, nodes: list[Node], free: dict[str, Room]) -> Why:
    try:
        check_possible(waiting.slots, nodes)
    except DoesNotFit as impossible:
        return Why("impossible", f"cannot start on the nodes there are: {impossible.message}")
    needed = [slot for slot in waiting.slots if slot.needed]
    wants = f"{asked_for(needed)} for {len(needed)} {'process' if len(needed) == 1 else 'processes'}"
    return Why("no_room", f"waits for room: it needs {wants}; free now: {_free(free.values())}")


def _free(free: Iterable[Room]) -> str:
    every = list(free)
    cpu = sum(room.cpu for room in every) / 1000
    memory = sum(room.memory for room in every)
    gpu = sum(len(room.gpus) for room in every)
    shares = sum(max(room.shares, 0) for room in every)
    return f"{cpu:g} CPUs, {format_size(memory)}, {gpu} GPUs, {shares} places for processes that ask for no CPU"
