"""Paddle: Fleet and DataParallel find their peers by PADDLE_* variables, as `paddle.distributed.launch` would set them.

A worker with several GPUs is several processes, one per GPU, each of which sees its own alone. With parameter servers
both roles run the script, after `shoal.adapters.paddle` has seen that the installed build has them. Checked against
Paddle 3.3.1.
"""

from __future__ import annotations

from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers

PORT, MASTER = "paddle", "master"
SERVER = "server"
CHECKED = "shoal.adapters.paddle"
ROLES = {WORKER: "TRAINER", SERVER: "PSERVER"}


class Paddle:
    """The launcher for paddle.distributed."""

    name = "paddle"

    def processes_per_slot(self, role: Role) -> int:
        return max(1, role.resources.gpu) if role.name == WORKER else 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        if role not in ROLES:
            return ()
        return (PORT, MASTER) if (role, index) == (WORKER, 0) else (PORT,)

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        gpus = place.node_gpus[member.local : member.local + 1] if member.role == WORKER else place.gpus
        facts = environ.facts(spec, roster, member, place, gpus) | environ.library(role)
        if member.role == WORKER:
            facts |= _collective(roster, member, bool(gpus))
        served = SERVER in peers(roster).roles
        if served and member.role in ROLES:
            facts |= _served(roster, member)
        argv = environ.argv(spec, role, roster, member, place)
        if served and spec.script and not role.command:
            argv[1:1] = ["-m", CHECKED]
        return environ.make(
            argv,
            role,
            roster,
            member,
            defaults=environ.loopback(roster),
            facts=facts,
            processes=self.processes_per_slot(role),
            session=True,  # as under paddle.distributed.launch; in one session its ranks are slower by a twelfth
        )


def _collective(roster: Roster, member: Member, on_gpu: bool) -> dict[str, str]:
    known = peers(roster)
    first, here = known.workers[0], known.workers_on[member.node]
    told = {
        "PADDLE_MASTER": f"{first.address}:{first.ports[MASTER]}",
        "PADDLE_CURRENT_ENDPOINT": environ.address(member),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(map(environ.address, known.workers)),
        **dict.fromkeys(("PADDLE_TRAINER_ID", "PADDLE_GLOBAL_RANK"), str(member.index)),
        **dict.fromkeys(("PADDLE_TRAINERS_NUM", "PADDLE_GLOBAL_SIZE"), str(len(known.workers))),
        **dict.fromkeys(("PADDLE_LOCAL_RANK", "PADDLE_RANK_IN_NODE"), str(member.local)),
        "PADDLE_LOCAL_SIZE": str(here),
        "PADDLE_NNODES": str(len(known.node_number)),
    }
    return {**told, "FLAGS_selected_gpus": "0"} if on_gpu else {**told, "PADDLE_DISTRI_BACKEND": "gloo"}


def _served(roster: Roster, member: Member) -> dict[str, str]:
    known = peers(roster)
    return {
        "TRAINING_ROLE": ROLES[member.role],
        "PADDLE_ROLE": ROLES[member.role],
        "POD_IP": member.address,
        "PADDLE_PORT": str(member.ports[PORT]),
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(map(environ.address, known.roles[SERVER])),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(map(environ.address, known.workers)),
        "PADDLE_TRAINERS_NUM": str(len(known.workers)),
    }
