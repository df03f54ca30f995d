"""Where a process of a scikit-learn job stands: who the chief is, how many workers there are. The environment is read
here, nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal import contract
from shoal.contract import GONE, Roster

CHIEF, WORKER = "chief", "worker"
PORT = "tasks"  # the name of the port at which the chief listens


@dataclass(frozen=True)
class Place:
    """One process, and its chief's address."""

    name: str
    chief: str
    host: str
    port: int
    roster: Path
    secret: bytes = field(repr=False)

    @property
    def leads(self) -> bool:
        return self.name == self.chief

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Place | None:
        """None outside a job, and in a job that has no chief with tasks to give."""
        told = os.environ if variables is None else variables
        if not all(told.get(name) for name in (contract.ROSTER, contract.SECRET, contract.MEMBER)):
            return None
        roster = Path(told[contract.ROSTER])
        chiefs = [member for member in Roster.from_json(roster.read_text()).role(CHIEF) if PORT in member.ports]
        if not chiefs:
            return None
        chief = chiefs[0]
        address, port = chief.address, chief.ports[PORT]
        return cls(told[contract.MEMBER], chief.name, address, port, roster, told[contract.SECRET].encode())

    def workers(self) -> int:
        """How many there are now, or will be again: all but those that the roster gives up."""
        members = Roster.from_json(self.roster.read_text()).role(WORKER)
        return sum(member.state != GONE for member in members)

    def mates(self) -> int:
        """Workers on this process's own node, itself among them."""
        members = Roster.from_json(self.roster.read_text()).role(WORKER)
        node = next((member.node for member in members if member.name == self.name), None)
        return max(1, sum(member.node == node for member in members))
