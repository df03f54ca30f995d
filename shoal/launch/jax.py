"""JAX: `jax.distributed.initialize()` finds the others by variables, with no arguments.

It reads the coordinator's address from a variable of its own, but how many processes there are and which one it is only
from those of a launcher it knows; Open MPI's are the plainest. A process with GPUs sees those of its slot alone.
Checked against JAX 0.10.2.
"""

from __future__ import annotations

from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers

COORDINATOR = "coordinator"


class Jax:
    """The launcher for jax.distributed. Worker 0 serves the coordinator's port itself."""

    name = "jax"

    def processes_per_slot(self, role: Role) -> int:
        return 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        return (COORDINATOR,) if (role, index) == (WORKER, 0) else ()

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        facts = environ.facts(spec, roster, member, place, place.gpus) | environ.library(role)
        if member.role == WORKER:
            facts |= _peers(roster, member, len(place.gpus))
        argv = environ.argv(spec, role, roster, member, place)
        return environ.make(argv, role, roster, member, defaults={}, facts=facts, processes=1)


def _peers(roster: Roster, member: Member, gpus: int) -> dict[str, str]:
    workers = peers(roster).workers
    coordinator = environ.address(workers[0])
    return {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_COORDINATOR_BIND_ADDRESS": coordinator,  # else it listens on every interface
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(max(1, gpus)))),  # all that it sees
        "OMPI_MCA_orte_hnp_uri": "shoal",
        "OMPI_COMM_WORLD_SIZE": str(len(workers)),
        "OMPI_COMM_WORLD_RANK": str(member.index),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(member.local),
    }
