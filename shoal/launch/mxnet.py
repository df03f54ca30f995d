"""MXNet: a scheduler, servers and workers of the key-value store find each other by DMLC_* variables.

MXNet itself runs the scheduler and the servers, when it is imported with such a role: `shoal.adapters.mxnet` does no
more. The scheduler hands out ranks in the order of ports, so the ports of a node are given in that order, and on one
node `kv.rank` is the worker's number in the logs. Checked against MXNet 1.9.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import peers

ROOT, OWN = "root", "own"
SERVE = "shoal.adapters.mxnet"
ROLES = ("scheduler", "server", "worker")  # as MXNet calls them, too


class MXNet:
    """The launcher for MXNet's dist_* key-value stores. A worker is one process with all GPUs of its slot."""

    name = "mxnet"

    def processes_per_slot(self, role: Role) -> int:
        return 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        return (ROOT,) if role == "scheduler" else (OWN,) if role in ROLES else ()

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        facts = environ.facts(spec, roster, member, place, place.gpus) | environ.library(role)
        if member.role in ROLES:
            facts |= _store(roster, member)
        argv = environ.argv(spec, role, roster, member, place, own=[SERVE])
        return environ.make(argv, role, roster, member, defaults={}, facts=facts, processes=1)


def _store(roster: Roster, member: Member) -> dict[str, str]:
    known = peers(roster)
    root = known.roles["scheduler"][0]
    told = {
        "DMLC_ROLE": member.role,
        "DMLC_PS_ROOT_URI": root.address,
        "DMLC_PS_ROOT_PORT": str(root.ports[ROOT]),
        "DMLC_NUM_SERVER": str(len(known.roles["server"])),
        "DMLC_NUM_WORKER": str(len(known.workers)),
        "DMLC_NODE_HOST": member.address,
    }
    if member is not root:
        told["PORT"] = str(_port(known.roles[member.role], member))
    return {**told, "DMLC_INTERFACE": "lo"} if known.on_one_machine else told


def _port(members: Sequence[Member], member: Member) -> int:
    """Of the ports of its role on its node, the one in its turn."""
    here = [one for one in members if one.node == member.node]
    return sorted(one.ports[OWN] for one in here)[here.index(member)]
