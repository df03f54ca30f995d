"""What a real Horovod needs besides variables: a server where its workers leave their addresses for gloo.

`horovodrun` would run it; in a job the first worker does, at the port that the launcher reserved for it.
"""

from __future__ import annotations

import errno
import importlib
import os
import threading
from typing import Any

from shoal import contract
from shoal.adapters.hvd.topology import Topology
from shoal.contract import Roster

PORT = f"{contract.PORT_PREFIX}RENDEZVOUS"
ADDRESS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"


def serve() -> None:
    """In the first worker, once; elsewhere, and in its children, nothing."""
    if os.environ.get(contract.RANK) != "0" or PORT not in os.environ:
        return
    theirs = importlib.import_module("horovod.runner.http.http_server")
    place = os.environ[ADDRESS], int(os.environ[PORT])
    try:
        server = theirs.RendezvousHTTPServer(place, theirs.RendezvousHandler, 0)
    except OSError as taken:
        if taken.errno == errno.EADDRINUSE:
            return  # a child of the first worker: its parent serves
        raise
    server.init(_slots())
    threading.Thread(target=server.serve_forever, name="shoal-rendezvous", daemon=True).start()


def _slots() -> list[Any]:
    """Every worker as Horovod's launcher would list it."""
    theirs = importlib.import_module("horovod.runner.common.util.hosts")
    with open(os.environ[contract.ROSTER]) as file:
        roster = Roster.from_json(file.read())
    workers = sorted(roster.role("worker"), key=lambda one: one.index)
    nodes = [worker.node for worker in workers]
    found = []
    for rank, worker in enumerate(workers):
        told = Topology.of(rank, nodes)
        found.append(
            theirs.SlotInfo(
                hostname=worker.node,
                rank=told.rank,
                local_rank=told.local_rank,
                cross_rank=told.cross_rank,
                size=told.size,
                local_size=told.local_size,
                cross_size=told.cross_size,
            )
        )
    return found
