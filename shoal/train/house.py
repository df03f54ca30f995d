"""The one door of a worker: a listener at its port in the roster, behind which every service of this process stands.

A worker has one reserved port, and several parts may serve there (the data clerk, gossip): they share the host. It
opens when the first service comes and closes with the run.
"""

from __future__ import annotations

import threading
import time

from shoal.errors import UnknownName
from shoal.train.wire.host import Host, Service
from shoal.train.wire.link import DEADLINE, Link
from shoal.train.world import Peer, World

PAUSE = 0.05  # seconds between two tries to reach a service that is not there yet

_lock = threading.Lock()
_open: dict[tuple[str, int], Host] = {}


def serve(world: World, name: str, service: Service) -> Host:
    """Answers for `name` at this worker's port, from now on. A service of the same name is replaced."""
    me = world.workers[world.rank]
    with _lock:
        host = _open.get((me.host, me.port))
        if host is None:
            host = _open[(me.host, me.port)] = Host(world.secret, {name: service}, me.host, me.port).start()
        host.services[name] = service
        return host


def reach(world: World, peer: Peer, service: str, deadline: float = DEADLINE) -> Link:
    """A link to a service of a peer, also when the peer has not begun to serve it yet."""
    end = time.monotonic() + deadline
    while True:
        left = max(0.1, end - time.monotonic())
        try:
            return Link.open(
                peer.host, peer.port, world.secret, service=service, me=world.me, peer=peer.name, deadline=left
            )
        except UnknownName:
            if time.monotonic() > end:
                raise
            time.sleep(PAUSE)


def close(world: World) -> None:
    """Nobody is served here any more. Harmless twice."""
    if not world.workers:
        return
    me = world.workers[world.rank]
    with _lock:
        host = _open.pop((me.host, me.port), None)
    if host:
        host.close()
