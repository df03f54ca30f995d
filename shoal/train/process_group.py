"""The torch.distributed process group of all workers: opened when first needed, shared, closed with its last user.

Shoal's launcher and torchrun both say in MASTER_ADDR and MASTER_PORT where to meet. CPU tensors travel by gloo, CUDA
tensors by NCCL. A group that the script opened itself is used as it is and left open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from shoal.train.errors import PeerLost, TrainError, WaitedTooLong
from shoal.train.world import World

PATIENCE = 1800.0  # seconds a collective waits for the slowest; a dead peer is noticed at once
GOODBYE = 5.0  # seconds the first worker, who keeps the store, waits for the others to leave

_LATE = ("timed out", "timeout")
_GONE = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "remote process exited",
)

_lock = threading.Lock()
_users = 0
_ours = False
_opened = 0  # groups so far: each has its own corner of the store
_store: torch._C._distributed_c10d.Store | None = (
    None  # kept for as long as the process lives; a port opened again may still answer as the old one
)


def join(world: World, patience: float = PATIENCE) -> None:
    """Opens the group of all workers, or counts one more user of it. Collective the first time."""
    global _users, _ours
    with _lock:
        if not dist.is_initialized():
            _open(world, patience)
            _ours = True
        _users += 1


def leave() -> None:
    """The opposite of `join`. The last user closes the group: left open, about one run in ten aborts at exit."""
    global _users, _ours
    with _lock:
        _users = max(0, _users - 1)
        if _users or not _ours:
            return
        _ours = False
        if dist.is_initialized():
            _say_goodbye()
            dist.destroy_process_group()


@contextmanager
def joining(world: World, what: str) -> Iterator[None]:
    """`join` for what is done inside, and for after it when it succeeds."""
    join(world)
    try:
        with waiting(what, others(world)):
            yield
    except BaseException:
        leave()
        raise


@contextmanager
def waiting(what: str, who: Sequence[str]) -> Iterator[None]:
    """Says of an error inside what was waited for, and for whom: PeerLost or WaitedTooLong."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if any(sign in text for sign in _GONE):
            raise PeerLost(
                f"{what}: one of {_named(who)} is gone ({_first_line(str(error))}); see its log for the cause", who
            ) from error
        if isinstance(error, dist.DistBackendError) or any(sign in text for sign in _LATE):
            raise WaitedTooLong(
                f"{what}: one of {_named(who)} did not come ({_first_line(str(error))}); "
                "every worker must make the same calls in the same order, see where the others stand",
                who,
            ) from error
        raise


def _open(world: World, patience: float) -> None:
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise TrainError(
            f"{world.me} of {world.size} cannot meet the others: MASTER_ADDR and MASTER_PORT are not set; "
            "start the script with shoal run or torchrun"
        )
    global _opened, _store
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    place, limit = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", timedelta(seconds=patience)
    with waiting(f"{world.me} opens the process group at {place}", others(world)):
        if _store is None:
            _store = next(rendezvous("env://", world.rank, world.size, timeout=limit))[0]
        _opened += 1
        corner = torch._C._distributed_c10d.PrefixStore(f"shoal/group/{_opened}", _store)
        dist.init_process_group(backend, store=corner, rank=world.rank, world_size=world.size, timeout=limit)


def _say_goodbye() -> None:
    """The store lives in the first worker: whoever still needs it to close must not find it gone."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with suppress(RuntimeError):  # a peer that died says no goodbye
        assert _store is not None
        _store.set(f"shoal/goodbye/{_opened}/{rank}", "1")
        if rank == 0:
            _store.wait([f"shoal/goodbye/{_opened}/{one}" for one in range(size)], timedelta(seconds=GOODBYE))


def others(world: World) -> list[str]:
    return [f"worker-{rank}" for rank in range(world.size) if rank != world.rank]


def _named(who: Sequence[str]) -> str:
    return ", ".join(who[:8]) + (f" and {len(who) - 8} more" if len(who) > 8 else "") or "the others"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:160] if lines else "no message"
