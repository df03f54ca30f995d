"""MPI: every worker is a rank, made one by mpirun's variables; see `shoal.adapters.mpi`.

The program stays the worker's own process, so that its log, its limits and its GPUs are the worker's. Checked against
Open MPI 4.1.
"""

from __future__ import annotations

from shoal import contract
from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers

PORT = "mpi"  # where a rank waits for its variables
ADAPTER = "shoal.adapters.mpi"
SAME = "-"  # the adapter's own interpreter, which only the node may know
INTERFACES = ("OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include")


class Mpi:
    """The launcher for programs that call MPI_Init."""

    name = "mpi"

    def processes_per_slot(self, role: Role) -> int:
        return 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        return (PORT,) if role == WORKER else ()

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        facts = environ.facts(spec, roster, member, place, place.gpus) | environ.library(role)
        facts[contract.HOSTFILE] = environ.HOSTFILE_PATH
        python, argv = environ.python(spec, place), environ.argv(spec, role, roster, member, place)
        if member.role == WORKER:
            argv = [python, "-m", ADAPTER, "rank", *(SAME if one == python else one for one in argv[:1]), *argv[1:]]
        return environ.make(argv, role, roster, member, defaults=_defaults(roster), facts=facts, processes=1)


def _defaults(roster: Roster) -> dict[str, str]:
    """Open MPI leaves the loopback interface out unless told, and listens on all others."""
    return dict.fromkeys(INTERFACES, "lo") if peers(roster).on_one_machine else {}
