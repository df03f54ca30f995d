"""Where a rank of an MPI job stands. The environment is read here, nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal import contract
from shoal.contract import Member, Roster
from shoal.errors import BadSpec
from shoal.train.wire.link import Link

WORKER = "worker"
PORT = "mpi"  # the name of the port at which a rank waits
BECOME, RUN = "become", "run"  # the services of a rank: take MPI's variables; run a daemon of mpirun's
DEADLINE = 60.0  # seconds in which a rank of the gang must answer


@dataclass(frozen=True)
class Place:
    """One worker among all."""

    rank: int
    workers: tuple[Member, ...]
    secret: bytes = field(repr=False)

    @property
    def own(self) -> Member:
        return self.workers[self.rank]

    @property
    def name(self) -> str:
        return self.own.name

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Place:
        missing = [name for name in (contract.ROSTER, contract.SECRET, contract.MEMBER) if not variables.get(name)]
        if missing:
            raise BadSpec(f"a rank of MPI needs {', '.join(missing)}; it is started by Shoal, under framework mpi")
        roster = Roster.from_json(Path(variables[contract.ROSTER]).read_text())
        workers = tuple(sorted(roster.role(WORKER), key=lambda one: one.index))
        rank = next(number for number, one in enumerate(workers) if one.name == variables[contract.MEMBER])
        return cls(rank, workers, variables[contract.SECRET].encode())

    def call(self, peer: Member, service: str, me: str) -> Link:
        """A link to a rank, both ends proven."""
        port = peer.ports[PORT]
        return Link.open(peer.address, port, self.secret, service=service, me=me, peer=peer.name, deadline=DEADLINE)

    def at(self, address: str) -> Member:
        """The first worker at an address, which is the one that runs mpirun's daemon there."""
        found = next((one for one in self.workers if one.address == address), None)
        if found is None:
            raise BadSpec(f"mpirun wants to start a daemon at {address}, where this job has no worker")
        return found
