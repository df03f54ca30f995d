"""LightGBM: every worker has a fresh port, and all know the list of machines in the order of the ranks.

LightGBM reads no variables: a script takes the list as `{worker_hosts}` in its arguments, or from
`shoal.lightgbm.params()`. A port that was used a moment ago fails to bind while the peers wait for minutes, so no
attempt gets the ports of another. Checked against lightgbm 4.7.
"""

from __future__ import annotations

from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ, ready
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers

MAIN = "main"  # the first one: it is what `{port}` and `{worker_hosts}` stand for
MOST_MACHINES = 500  # the system refuses a variable over 128 KiB; the roster file has everyone


class LightGBM:
    """The launcher for LightGBM's data-parallel and voting-parallel training, and for training without a script."""

    name = "lightgbm"

    def processes_per_slot(self, role: Role) -> int:
        return 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        return (MAIN, ready.TRAIN) if role == WORKER else ()

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        facts = {
            **environ.facts(spec, roster, member, place, place.gpus),
            **_machines(roster),
            **environ.library(role),
        }
        argv = ready.argv(spec, role, roster, member, place)
        threads = ready.threads(spec, role, roster, member, 1)
        return environ.make(argv, role, roster, member, defaults=threads, facts=facts, processes=1)


def _machines(roster: Roster) -> dict[str, str]:
    """What LightGBM calls its parameters, as variables, for scripts that read them."""
    workers = peers(roster).workers
    if not 0 < len(workers) <= MOST_MACHINES:
        return {}
    return {
        "LIGHTGBM_MACHINES": ",".join(map(environ.address, workers)),
        "LIGHTGBM_NUM_MACHINES": str(len(workers)),
    }
