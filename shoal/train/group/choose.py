"""Which group a world gets: shared memory on one machine, with the network over several, the network alone else."""

from __future__ import annotations

import logging

from shoal.train.errors import NoRoom
from shoal.train.group.api import Group
from shoal.train.group.shm import PATIENCE, SharedGroup
from shoal.train.group.threads import ThreadGroup
from shoal.train.seeing import Seeing
from shoal.train.wire import segment
from shoal.train.world import World

WAIT = "SHOAL_TRAIN_WAIT"  # seconds a member that lives but does not come is waited for

_log = logging.getLogger("shoal.train")


def make(world: World, seeing: Seeing, name: str = "all") -> Group:
    """The group of all workers. Collective: all of them must ask, and those that ask for several, in the same order;
    `name` keeps them apart."""
    if world.size == 1:
        return ThreadGroup.make(1)[0]
    patience = float(world.variables.get(WAIT, PATIENCE))
    nodes = dict.fromkeys(peer.node for peer in world.workers)
    if not _shares(world):
        return _over_network(world, seeing, name, patience)
    try:
        if len(nodes) == 1:
            assert world.shared is not None
            return SharedGroup.meet(world.shared, world.rank, range(world.size), name, seeing, patience)
        from shoal.train.group.hosts import HostsGroup

        return HostsGroup.meet(world, seeing, name, patience)
    except NoRoom as no_room:
        _log.warning("%s; going on over the network, which is slower", no_room.message)
        return _over_network(world, seeing, name, patience)


def _shares(world: World) -> bool:
    """Whether shared memory saves anything: it works here, and some machine has more than one worker."""
    nodes = [peer.node for peer in world.workers]
    return world.shared is not None and segment.usable() and len(set(nodes)) < len(nodes)


def _over_network(world: World, seeing: Seeing, name: str, patience: float) -> Group:
    from shoal.train.group.dist import DistGroup

    return DistGroup.meet(world, seeing, name, patience)
