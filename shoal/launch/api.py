"""What every launcher offers: from (job, roster, place) to (command, environment). Pure: no I/O, no clock, no environ.

A launcher teaches one framework who its peers are. It is asked three things: how many processes a slot holds (when the
job is placed), which ports each needs (before anyone joins), and what each is to run (once the roster is complete).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.contract import Member, Process, Roster
from shoal.job.nodes import Placement
from shoal.job.roles import Role
from shoal.job.spec import JobSpec

PYTHON = "python3"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one process of an attempt runs, and what the roster does not say: its GPUs and its interpreter."""

    job: str
    attempt: int  # counts from 1
    node: str
    gpus: tuple[int, ...] = ()  # its slot's own
    node_gpus: tuple[int, ...] = ()  # those of all slots of its role on this node, in the order of the slots
    python: str = PYTHON  # the submitter's interpreter, for a job that names no environment
    secret: str = ""  # what peers inside the gang prove to each other

    @classmethod
    def at(
        cls,
        placement: Placement,
        role: str,
        slot: int,
        *,
        job: str,
        attempt: int,
        python: str = PYTHON,
        secret: str = "",
    ) -> Place:
        """The place of a slot's processes, from the placement of the whole gang."""
        berths = sorted((b for b in placement if b.slot.role == role), key=lambda b: b.slot.index)
        own = next(b for b in berths if b.slot.index == slot)
        shared = tuple(gpu for b in berths if b.node == own.node for gpu in b.gpus)
        return cls(job, attempt, own.node, own.gpus, shared, python, secret)


class Launcher(Protocol):
    """How a framework's processes learn of their peers."""

    name: str

    def processes_per_slot(self, role: Role) -> int:
        """How many processes one slot of the role holds, at least one; the same answer whenever it is asked."""
        ...

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        """Names of the ports to reserve for the index-th process of the role; the roster will carry their numbers."""
        ...

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        """The whole command, environment and limits of one member. Asked again for a restarted rank, with the roster
        as it is then."""
        ...
