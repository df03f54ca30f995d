"""XGBoost: one tracker of Shoal's tells the workers of each other, by the variables that XGBoost's own launchers use.

The library itself reads none of them since 2.1: a small file on the workers' path makes `xgboost.collective` look there
(`shoal/adapters/xgboost_path`). A worker with several GPUs is several processes, one per GPU, each of which sees only
its own. The tracker sorts tasks by their text, so the numbers are written with leading zeros: rank r is worker-r.
Checked against xgboost 3.2 (`tracker.py`, `collective.py`).
"""

from __future__ import annotations

from shoal import contract
from shoal.contract import Member, Process, Roster
from shoal.frameworks import TRACKER
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ, ready
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers

TRACK, GATE = "track", "gate"  # the tracker's own port, and one that is open once it is there
OWN_TRACKER = "shoal.adapters.tracker"
HOOK = f"{environ.LIBRARY_PATH}/shoal/adapters/xgboost_path"


class XGBoost:
    """The launcher for scripts that use `xgboost.collective`, and for training without a script."""

    name = "xgboost"

    def processes_per_slot(self, role: Role) -> int:
        return max(1, role.resources.gpu) if role.name == WORKER else 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        if role == TRACKER:
            return (TRACK, GATE)
        return (ready.TRAIN,) if role == WORKER and ready.is_ready(spec) else ()

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        several = self.processes_per_slot(role)
        facts = {
            **environ.facts(spec, roster, member, place, _gpus(member, place, several)),
            **_tracker(roster),
            **environ.library(role, HOOK),
        }
        if member.role == WORKER:
            facts |= {"DMLC_ROLE": WORKER, "DMLC_TASK_ID": f"{member.index:06d}"}
        return environ.make(
            _argv(spec, role, roster, member, place),
            role,
            roster,
            member,
            defaults=ready.threads(spec, role, roster, member, several),
            facts=facts,
            processes=several,
        )


def _argv(spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> list[str]:
    if role.ours and role.command is None:
        return [environ.python(spec, place), "-m", OWN_TRACKER]
    return ready.argv(spec, role, roster, member, place)


def _gpus(member: Member, place: Place, several: int) -> tuple[int, ...]:
    """XGBoost takes the first GPU it sees: each process of a slot gets one of the slot's."""
    if member.role != WORKER or several == 1:
        return place.gpus
    return place.gpus[member.index - member.slot * several :][:1]


def _tracker(roster: Roster) -> dict[str, str]:
    known = peers(roster)
    told = {"DMLC_NUM_WORKER": str(len(known.workers))}
    for tracker in known.roles.get(TRACKER, ()):
        told |= {"DMLC_TRACKER_URI": tracker.address, "DMLC_TRACKER_PORT": str(tracker.ports[TRACK])}
        told[contract.GATE] = str(tracker.ports[GATE])
    return told
