"""What the launchers of boosted trees share: the ready trainer where there are data and no script, and the threads."""

from __future__ import annotations

import json

from shoal.contract import Member, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers

TRAIN = "train"  # where a worker's words to the others go
TRAINER = "shoal.adapters.boost"


def is_ready(spec: JobSpec) -> bool:
    """Whether the job trains without a script."""
    return spec.data is not None


def argv(spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> list[str]:
    """The trainer's command line, its whole task as one argument that a person can read; else the job's own."""
    if not is_ready(spec) or role.command is not None or role.name != WORKER:
        return environ.argv(spec, role, roster, member, place)
    task = {"data": spec.data, "label": spec.label, "valid": spec.valid, "params": spec.params}
    said = {name: value for name, value in task.items() if value not in (None, {})}
    return [environ.python(spec, place), "-m", TRAINER, spec.kind, json.dumps(said)]


def threads(spec: JobSpec, role: Role, roster: Roster, member: Member, processes: int) -> dict[str, str]:
    """As many threads as cores were asked for. Where nobody said, one for each of several workers of a node: all cores
    for each of them is slower than one, because OpenMP's threads spin while they wait."""
    if role.resources.cpu is not None:
        return {"OMP_NUM_THREADS": str(max(1, int(role.resources.cpu / processes)))}
    if is_ready(spec):
        return {}  # the trainer shares the node's cores out by itself
    return {"OMP_NUM_THREADS": "1"} if peers(roster).workers_on[member.node] > 1 else {}
