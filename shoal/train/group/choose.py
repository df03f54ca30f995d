"""Which group a world gets: shared memory on one machine, with the network over several, the network alone else."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shoal.train.errors import NoRoom
from shoal.train.group.api import Group
from shoal.train.group.dist import DistGroup
from shoal.train.group.hosts import HostsGroup, folder
from shoal.train.group.shm import PATIENCE, SharedGroup
from shoal.train.group.threads import ThreadGroup
from shoal.train.seeing import Seeing
from shoal.train.world import World

WAIT = "SHOAL_TRAIN_WAIT"  # seconds a member that lives but does not come is waited for

_log = logging.getLogger("shoal.train")
_made: Counter[tuple[bytes, int, str]] = Counter()


def make(world: World, seeing: Seeing, name: str = "all") -> Group:
    """The group of all workers. Collective: all of them must ask, and those that ask for several, in the same order;
    `name` keeps them apart."""
    if world.size == 1:
        return ThreadGroup.make(1)[0]
    name = _numbered(world, name)
    patience = float(world.variables.get(WAIT, PATIENCE))
    nodes = [peer.node for peer in world.workers]
    try:
        if len(set(nodes)) == 1:
            return SharedGroup.meet(folder(world), world.rank, range(world.size), name, seeing, patience)
        if len(set(nodes)) < len(nodes):
            return HostsGroup.meet(world, seeing, name, patience)
    except NoRoom as no_room:
        _log.warning("%s; going on over the network, which is slower", no_room.message)
    return DistGroup.meet(world, seeing, name, patience)


def part(world: World, ranks: Sequence[int], seeing: Seeing, name: str) -> tuple[Group, list[int]]:
    """Of some workers, this one among them, and how that group counts them, in the order of `ranks`: over a network
    from 0 on. Collective among them; `name` is used once."""
    if len(ranks) == 1:
        return ThreadGroup.make(1)[0], [0]
    patience = float(world.variables.get(WAIT, PATIENCE))
    workers = tuple(world.workers[rank] for rank in ranks)
    if len({peer.node for peer in workers}) == 1:
        try:
            return SharedGroup.meet(folder(world), world.rank, ranks, name, seeing, patience), list(ranks)
        except NoRoom as no_room:
            _log.warning("%s; going on over the network, which is slower", no_room.message)
    here = replace(world, rank=list(ranks).index(world.rank), size=len(ranks), workers=workers)
    return make(here, seeing, name), list(range(len(ranks)))


def on_machine(world: World, ranks: Sequence[int], seeing: Seeing, name: str) -> SharedGroup:
    """Of some workers of this machine. Collective among them; NoRoom, on all of them, where memory is short."""
    patience = float(world.variables.get(WAIT, PATIENCE))
    return SharedGroup.meet(folder(world), world.rank, ranks, _numbered(world, name), seeing, patience)


def _numbered(world: World, name: str) -> str:
    """A name that no earlier group of this worker had: a slow member may not have left the last one yet."""
    key = world.secret, world.rank, name
    _made[key] += 1
    return f"{name}-{_made[key]}"
