"""torchrun, `accelerate launch` and `deepspeed` as the command of a worker: they are told of the other workers in the
words each has for that; the user's own words come later and win.

Checked against torch 2.13, accelerate 1.15 (several processes only on GPUs, which nobody here has) and deepspeed 0.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from shoal.contract import Member, Roster
from shoal.job.roles import Role
from shoal.job.starters import ACCELERATE, DEEPSPEED, TORCHRUN, Starter
from shoal.launch.peers import peers

STANDALONE = "--standalone"  # torchrun's word for a world of its own on each node
OURS = "shoal.adapters.deepspeed"


def argv(found: Starter, role: Role, roster: Roster, member: Member, python: str, master: tuple[str, str]) -> list[str]:
    """The command with what it must know; a bare program name is looked for in the job's interpreter."""
    interpreter = _interpreter(found, python)
    if found.name == DEEPSPEED:
        return [interpreter, "-m", OURS, *found.rest]
    told = _accelerate(role, roster, member, master) if found.name == ACCELERATE else []
    return [interpreter, "-m", str(found.module), *told, *found.rest]


def variables(found: Starter, roster: Roster, member: Member, master: tuple[str, str]) -> dict[str, str]:
    """torchrun takes what its command line does not say from variables."""
    if found.name != TORCHRUN or STANDALONE in found.rest:
        return {}
    told = {"NNODES": str(len(peers(roster).workers)), "NODE_RANK": str(member.index)}
    return {
        f"PET_{name}": value for name, value in {**told, "MASTER_ADDR": master[0], "MASTER_PORT": master[1]}.items()
    }


def _accelerate(role: Role, roster: Roster, member: Member, master: tuple[str, str]) -> Sequence[str]:
    told = ["--main_process_ip", master[0], "--main_process_port", master[1]]
    count, gpus = len(peers(roster).workers), role.resources.gpu
    if gpus and count > 1:
        told += ["--num_machines", str(count), "--machine_rank", str(member.index)]
        told += ["--num_processes", str(count * gpus)]
    return told


def _interpreter(found: Starter, python: str) -> str:
    """The one beside a program that was named by its path; the job's own otherwise."""
    path = PurePosixPath(found.program)
    if not path.is_absolute():
        return python
    return found.program if path.name.startswith("python") else str(path.with_name("python"))
