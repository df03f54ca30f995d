"""LightGBM in a job: the list of machines as its parameters.

LightGBM listens anew for every training, and a port that was used a moment ago fails to bind while the peers wait for
minutes. So the first training has the ports that were reserved for the attempt, and for every further one in the same
process the workers find fresh ones and tell each other.
"""

from __future__ import annotations

import itertools
import os
import socket
from functools import cache
from typing import Any

from shoal import contract
from shoal.adapters.meeting import Meeting
from shoal.contract import Member, Roster
from shoal.train.world import WORKER, World

MAIN = "main"

_trainings = itertools.count()


def params() -> dict[str, Any]:
    """What joins this worker's training to the others': `{**mine, **params()}`, also for the scikit-learn estimators.

    Nothing when the worker is alone. Every worker must ask equally often, once for each training.
    """
    if contract.ROSTER not in os.environ or int(os.environ.get(contract.SIZE, "1")) < 2:
        return {}
    rank = int(os.environ[contract.RANK])
    with open(os.environ[contract.ROSTER], encoding="utf-8") as file:
        workers = sorted(Roster.from_json(file.read()).role(WORKER), key=lambda one: one.index)
    ports = [worker.ports[MAIN] for worker in workers]
    if next(_trainings):
        ports = _meeting().gather(_free_port())
    return together(workers, ports, rank)


def together(workers: list[Member], ports: list[int], rank: int) -> dict[str, Any]:
    """The parameters of one worker. LightGBM finds itself in the list by its port where an address occurs twice."""
    return {
        "machines": ",".join(f"{worker.address}:{port}" for worker, port in zip(workers, ports, strict=True)),
        "local_listen_port": ports[rank],
        "num_machines": len(workers),
        "tree_learner": "data",
        "pre_partition": True,
    }


@cache
def _meeting() -> Meeting:
    """Kept for the life of the process."""
    return Meeting(World.read())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
