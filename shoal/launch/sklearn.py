"""scikit-learn and everything that speaks joblib: the chief runs the script, the workers take its tasks.

The chief's script is run by `shoal.adapters.sklearn`, which makes the gang joblib's back end and changes nothing else.
Checked against joblib 1.6, scikit-learn 1.9.
"""

from __future__ import annotations

from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import peers

CHIEF = "chief"
TASKS = "tasks"  # where the chief gives out tasks
ADAPTER = "shoal.adapters.sklearn"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LOKY_MAX_CPU_COUNT")


class Sklearn:
    """The launcher for joblib. A worker is one process that runs one task at a time."""

    name = "sklearn"

    def processes_per_slot(self, role: Role) -> int:
        return 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        return (TASKS,) if (role, index) == (CHIEF, 0) else ()

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        facts = environ.facts(spec, roster, member, place, place.gpus) | environ.library(role)
        argv = _argv(spec, role, roster, member, place)
        defaults = _threads(role, roster, member) if role.ours else {}
        return environ.make(argv, role, roster, member, defaults=defaults, facts=facts, processes=1)


def _argv(spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> list[str]:
    adapter = [environ.python(spec, place), "-m", ADAPTER]
    if role.ours and not role.command:
        memory = role.resources.memory
        return [*adapter, "--worker", *([str(memory)] if memory else [])]
    if spec.script and not role.command:
        return [*adapter, spec.script, *environ.filled(spec.args, roster, member)]
    return environ.argv(spec, role, roster, member, place)


def _threads(role: Role, roster: Roster, member: Member) -> dict[str, str]:
    """As many threads as the worker has cores; one where it shares them with others and nobody said."""
    if role.resources.cpu is not None:
        count = max(1, int(role.resources.cpu))
    elif peers(roster).workers_on[member.node] > 1:
        count = 1
    else:
        return {}
    return dict.fromkeys(THREADS, str(count))
