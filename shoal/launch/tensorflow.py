"""TensorFlow: every process finds its peers in TF_CONFIG, under the names TensorFlow has for the roles.

MultiWorkerMirroredStrategy, ParameterServerStrategy and the old tf.compat.v1 clusters all read it. Where the roles'
table says so, workers and servers are Shoal's own process (`shoal.adapters.tensorflow`), and the script is the chief's.
Checked against TensorFlow 2.21.
"""

from __future__ import annotations

import json

from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import peers

PORT = "tf"
SERVE = "shoal.adapters.tensorflow"
TASKS = {"chief": "chief", "worker": "worker", "server": "ps"}  # roles of the cluster, in TensorFlow's words
EVALUATOR = "evaluator"  # a task, but no part of the cluster that trains

# So that a lost worker or server is told to the chief instead of being waited for.
DEFAULTS = {"GRPC_FAIL_FAST": "use_caller"}


class TensorFlow:
    """The launcher for tf.distribute. A worker is one process with all GPUs of its slot."""

    name = "tensorflow"

    def processes_per_slot(self, role: Role) -> int:
        return 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        return (PORT,) if role in TASKS else ()

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        facts = environ.facts(spec, roster, member, place, place.gpus) | environ.library(role)
        if member.role in TASKS or member.role == EVALUATOR:
            facts["TF_CONFIG"] = _config(roster, member)
        own = [SERVE, *([spec.script, *spec.args] if spec.script else [])]
        argv = environ.argv(spec, role, roster, member, place, own=own, words=TASKS)
        return environ.make(argv, role, roster, member, defaults=DEFAULTS, facts=facts, processes=1, words=TASKS)


def _config(roster: Roster, member: Member) -> str:
    """TF_CONFIG as the member sees it."""
    known = peers(roster).roles
    cluster = {task: list(map(environ.address, known[role])) for role, task in TASKS.items() if role in known}
    task = {"type": TASKS.get(member.role, member.role), "index": member.index}
    return json.dumps({"cluster": cluster, "task": task}, separators=(",", ":"))
