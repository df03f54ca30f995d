"""Horovod as one thing per process: begun, asked who one is, ended. All faces (torch, TensorFlow) share it."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.adapters.hvd import names
from shoal.adapters.hvd.ask import BARRIER, Ask
from shoal.adapters.hvd.engine import Engine
from shoal.adapters.hvd.errors import HorovodInternalError, NotStarted
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.topology import Topology
from shoal.train import house
from shoal.train.errors import PeerLost
from shoal.train.group.choose import part
from shoal.train.seeing import Seeing
from shoal.train.world import World

EVERYBODY = 0  # the number of the set of all


@dataclass
class _Running:
    """What `init` made."""

    world: World
    topology: Topology
    number: int  # how often this process has begun
    seeing: Seeing = field(default_factory=Seeing)
    engines: dict[int, Engine] = field(default_factory=dict)  # by number of the set; only those with this worker in it
    sets: dict[int, ProcessSet] = field(default_factory=dict)
    next_set: int = 1


_lock = threading.RLock()
_running: _Running | None = None
_begun = 0
_meeting: Any = None
_world: World | None = None  # as the last `init` saw it; smaller after workers were lost


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meets the other workers. Harmless twice. Collective."""
    with _lock:
        if _running is not None:
            return
        _begin(_world or _found())
        if comm and sorted(comm) != list(range(size())):
            shutdown()
            raise ValueError(
                f"comm={list(comm)!r} leaves workers out; start the job with that many, or use process_sets"
            )
        for one in process_sets if process_sets and not isinstance(process_sets, str) else ():
            add_process_set(one)


def shutdown() -> None:
    """Leaves. What is not done fails. Harmless twice, and done at the end of the process."""
    global _running
    with _lock:
        running, _running = _running, None
    if running is not None:
        for engine in reversed(list(running.engines.values())):
            engine.close()
        for one in running.sets.values():
            one.process_set_id = None
        global_process_set.ranks = []


def again() -> None:
    """Begins anew, after workers were lost with those that are left, in the order they had. HorovodInternalError, with
    the names of who is missing, where they cannot agree on that."""
    global _world
    with _lock:
        running, left = _running, None
        if running is not None and (why := running.engines[EVERYBODY].lost) is not None:
            if not isinstance(why, PeerLost):
                raise HorovodInternalError(f"this worker cannot begin anew: {why}") from why
            left = _survivors(running.engines[EVERYBODY], why)
        shutdown()
        if running is not None and left is not None:
            _world = _smaller(running.world, left)
        init()


def is_lost() -> bool:
    """Whether nothing can be exchanged any more until `again`."""
    return _running is not None and _running.engines[EVERYBODY].lost is not None


def is_initialized() -> bool:
    return _running is not None


def rank() -> int:
    return _now().topology.rank


def size() -> int:
    return _now().topology.size


def local_rank() -> int:
    return _now().topology.local_rank


def local_size() -> int:
    return _now().topology.local_size


def cross_rank() -> int:
    return _now().topology.cross_rank


def cross_size() -> int:
    return _now().topology.cross_size


def is_homogeneous() -> bool:
    return _now().topology.is_homogeneous


def secret() -> bytes:
    """What the workers of the job prove to each other; empty in a world of one."""
    return _now().world.secret


def engine(process_set: ProcessSet = global_process_set) -> Engine:
    """Who does the operations of a set. ValueError when it was not added, or this worker is not in it."""
    running = _now()
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not known; give it to hvd.init() or hvd.add_process_set() first")
    found = running.engines.get(process_set.process_set_id)
    if found is None:
        raise ValueError(f"rank {rank()} is not in {process_set}; ask process_set.included() first")
    return found


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Collective among all workers, also those outside. ValueError when there is a set of these ranks already."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    with _lock:
        running = _now()
        known = [global_process_set, *running.sets.values()]
        if not made.ranks or made.ranks[0] < 0 or made.ranks[-1] >= size() or len(set(made.ranks)) < len(made.ranks):
            raise ValueError(f"{made.ranks} are no ranks among {size()} workers; each from 0 to {size() - 1}, once")
        if any(one.ranks == made.ranks for one in known):
            raise ValueError(f"a process set of the ranks {made.ranks} is there already; use that one")
        number = running.next_set
        engine().do(Ask(BARRIER, f"process set {number} of {made.ranks}"))
        running.next_set += 1
        made.process_set_id = number
        running.sets[number] = made
        if rank() in made.ranks:
            group, ids = part(running.world, made.ranks, Seeing(), f"hvd-{running.number}-set-{number}")
            running.engines[number] = Engine(group, ids, made.ranks, rank())
        return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Collective among all workers. False when there is no such set, or it is that of all."""
    with _lock:
        running, number = _now(), process_set.process_set_id
        if number not in running.sets:
            return False
        engine().do(Ask(BARRIER, f"end of process set {number}"))
        running.sets.pop(number)
        process_set.process_set_id = None
        if number in running.engines:
            running.engines.pop(number).close()
        return True


def process_set_included(process_set_id: int = EVERYBODY) -> bool:
    return process_set_id in _now().engines


def _now() -> _Running:
    if _running is None:
        raise NotStarted
    return _running


def _found() -> World:
    """What the environment tells; under torchrun the workers first tell each other where they are."""
    global _meeting
    world = World.read()
    if world.source == "torchrun" and world.size > 1:
        from shoal.train.meet import meet

        world, _meeting = meet(world, False, 0)
    return world


def _begin(world: World) -> None:
    global _running, _begun, _world
    _begun += 1
    names.forget()
    nodes = [peer.node for peer in world.workers] or ["here"]
    running = _Running(world, Topology.of(world.rank, nodes), _begun)
    everybody = list(range(world.size))
    group, ids = part(world, everybody, running.seeing, f"hvd-{_begun}")
    running.engines[EVERYBODY] = Engine(group, ids, everybody, world.rank)
    global_process_set.ranks = everybody
    _running, _world = running, world
    if _begun == 1:
        atexit.register(_leave)


def _leave() -> None:
    shutdown()
    if _world is not None:
        house.close(_world)
    if _meeting is not None:
        _meeting.close()


def _survivors(was: Engine, why: PeerLost) -> list[int]:
    """The ranks that are left, as all of them agree: asked again when another dies meanwhile, each at most once."""
    for _ in was.ranks:
        try:
            return [int(one) for one in was.group.gather(rank())]
        except PeerLost:
            continue
    raise HorovodInternalError(
        f"those that are left cannot begin anew, since {why}; over several machines with several workers each let the "
        "attempt fail and be tried again"
    ) from why


def _smaller(world: World, ranks: Sequence[int]) -> World:
    workers = tuple(world.workers[one] for one in ranks)
    return replace(world, rank=list(ranks).index(world.rank), size=len(ranks), workers=workers)
