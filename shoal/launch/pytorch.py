"""PyTorch as torchrun would start it: the same variables, so that torch.distributed, Lightning, Accelerate and
DeepSpeed find their peers with no changed line.

A worker with several GPUs is several processes, one per GPU. LOCAL_RANK counts the job's workers on a node, and all of
them see all of the workers' GPUs there in that order, so `cuda:LOCAL_RANK` is each one's own, however the workers were
cut into slots. The group of torchrun is the node. There is no agent's store: rank 0 serves MASTER_PORT itself.
A command that begins with torchrun, `accelerate launch` or deepspeed is one process per worker, which starts the rest.
Checked against torch 2.13 (`local_elastic_agent.py`, `run.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.job.starters import starter
from shoal.launch import environ, starters
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers

MASTER = "master"
MAIN = "main"  # of a role of the user's own
TRAIN = "train"  # where the training library listens
SERVER = "server"
PARAMETER_SERVER = "shoal.train.ps"


class PyTorch:
    """The launcher for torch.distributed and everything built on it."""

    name = "pytorch"

    def processes_per_slot(self, role: Role) -> int:
        return max(1, role.resources.gpu) if role.name == WORKER and starter(role.command) is None else 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        if role not in (WORKER, SERVER):
            return (MAIN,)
        master = (MASTER,) if (role, index) == (WORKER, 0) else ()
        return (*master, TRAIN) if _is_trained(spec, role) else master

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        world = _World.of(roster, member)
        found = starter(role.command) if member.role == WORKER else None
        gpus = (place.node_gpus or place.gpus) if member.role == WORKER and found is None else place.gpus
        facts = {**environ.facts(spec, roster, member, place, gpus), **_master(roster)}
        if member.role == WORKER:
            facts |= world.variables() | _elastic(spec, place)
        if found is not None:
            facts |= starters.variables(found, roster, member, _where(roster))
        if spec.environment or spec.strategy or found is not None:
            facts |= environ.library(role)
        return environ.make(
            _argv(spec, role, roster, member, place),
            role,
            roster,
            member,
            defaults=_defaults(roster, world),
            facts=facts,
            processes=self.processes_per_slot(role),
            session=True,  # as under torchrun; in one session its ranks are slower by a twentieth
        )


def _is_trained(spec: JobSpec, role: str) -> bool:
    """Whether the process speaks to others through the training library."""
    return spec.chosen is not None and spec.chosen.family != "none" and role in (WORKER, SERVER)


def _argv(spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> list[str]:
    """A parameter server is the library's own process; a command that starts workers itself is told of its node."""
    argv = environ.argv(spec, role, roster, member, place, own=[PARAMETER_SERVER])
    found = starter(argv) if member.role == WORKER else None
    if found is None:
        return argv
    return starters.argv(found, role, roster, member, environ.python(spec, place), _where(roster))


@dataclass(frozen=True, slots=True)
class _World:
    """One worker's numbers among all workers, and among those of its node."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    group_rank: int
    group_size: int

    @classmethod
    def of(cls, roster: Roster, member: Member) -> _World:
        known = peers(roster)
        return cls(
            rank=member.index,
            size=len(known.workers),
            local_rank=member.local,
            local_size=known.workers_on[member.node],
            group_rank=known.node_number.get(member.node, 0),
            group_size=len(known.node_number),
        )

    def variables(self) -> dict[str, str]:
        numbers = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.group_rank,
            "GROUP_WORLD_SIZE": self.group_size,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.size,
        }
        return {"ROLE_NAME": WORKER, **{name: str(number) for name, number in numbers.items()}}


def _master(roster: Roster) -> dict[str, str]:
    if not peers(roster).workers:
        return {}
    address, port = _where(roster)
    return {"MASTER_ADDR": address, "MASTER_PORT": port}


def _where(roster: Roster) -> tuple[str, str]:
    first = peers(roster).workers[0]
    return first.address, str(first.ports[MASTER])


def _elastic(spec: JobSpec, place: Place) -> dict[str, str]:
    """What torchrun tells of restarts; an attempt is to Shoal what a restart of the group is to torchrun."""
    return {
        "TORCHELASTIC_RUN_ID": place.job,
        "TORCHELASTIC_RESTART_COUNT": str(place.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.retries),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _defaults(roster: Roster, world: _World) -> dict[str, str]:
    """What torchrun sets only when the user did not."""
    chosen = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if world.local_size > 1:
        chosen["OMP_NUM_THREADS"] = "1"
    return chosen | environ.loopback(roster)
