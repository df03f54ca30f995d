"""Horovod and BytePS as `horovodrun --gloo` and `bpslaunch` would start them, whether they are installed or not.

A folder on the path holds packages by their names. They step aside for the real ones where the interpreter has them;
where it has none, Shoal's own exchange stands behind them. A real Horovod finds its peers by a server that its first
worker runs at the port reserved here. Checked against Horovod 0.28.1 (`runner/gloo_run.py`, `gloo_context.cc`).
"""

from __future__ import annotations

from dataclasses import replace

from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers
from shoal.launch.pytorch import TRAIN, PyTorch

RENDEZVOUS = "rendezvous"
PACKAGES = f"{environ.LIBRARY_PATH}/shoal/adapters/horovod_path"


class Horovod:
    """The launcher for scripts that import `horovod` or `byteps`: PyTorch's, and what these read besides."""

    name = "horovod"

    def __init__(self) -> None:
        self._torch = PyTorch()

    def processes_per_slot(self, role: Role) -> int:
        return self._torch.processes_per_slot(role)

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        if role != WORKER:
            return self._torch.ports(spec, role, index)
        first = (RENDEZVOUS,) if index == 0 else ()
        return tuple(dict.fromkeys((*self._torch.ports(spec, role, index), TRAIN, *first)))

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        started = self._torch.process(spec, role, roster, member, place)
        told = _numbers(roster, member) | _meeting(roster) if member.role == WORKER else {}
        return replace(started, env={**_defaults(roster), **started.env, **_path(role), **told})


def _path(role: Role) -> dict[str, str]:
    """The packages first, then `shoal`, then the user's own paths."""
    return {"PYTHONPATH": f"{PACKAGES}:{environ.library(role)['PYTHONPATH']}"}


def _numbers(roster: Roster, member: Member) -> dict[str, str]:
    """Who one is among all, on its node, and among the nodes that have a worker of its number there."""
    known = peers(roster)
    like = [node for node, count in known.workers_on.items() if count > member.local]
    told = {
        "HOROVOD_RANK": member.index,
        "HOROVOD_SIZE": len(known.workers),
        "HOROVOD_LOCAL_RANK": member.local,
        "HOROVOD_LOCAL_SIZE": known.workers_on[member.node],
        "HOROVOD_CROSS_RANK": like.index(member.node),
        "HOROVOD_CROSS_SIZE": len(like),
        "BYTEPS_LOCAL_RANK": member.local,
        "BYTEPS_LOCAL_SIZE": known.workers_on[member.node],
        "DMLC_WORKER_ID": known.node_number[member.node],
        "DMLC_NUM_WORKER": len(known.node_number),  # BytePS counts machines
    }
    return {"HOROVOD_HOSTNAME": member.node, "DMLC_ROLE": WORKER, **{name: str(value) for name, value in told.items()}}


def _meeting(roster: Roster) -> dict[str, str]:
    first = peers(roster).workers[0]
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(first.ports[RENDEZVOUS]),
    }


def _defaults(roster: Roster) -> dict[str, str]:
    """Which interface gloo listens on: loopback when nobody is elsewhere, else Horovod's own choice or the user's."""
    return {"HOROVOD_GLOO_IFACE": "lo"} if peers(roster).on_one_machine else {}
