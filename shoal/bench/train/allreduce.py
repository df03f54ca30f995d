"""Milliseconds of one all-reduce of a CPU tensor: the group of one machine and gloo, in turn, in the same processes.

`python -m shoal.bench.train.allreduce <ranks> [megabytes ...]` prints one JSON line: {"1": {"ours": [...], "gloo":
[...]}}, milliseconds pair by pair.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from shoal import contract
from shoal.bench.train.gang import gang
from shoal.train.group.choose import make
from shoal.train.seeing import Seeing
from shoal.train.world import World

ME = "shoal.bench.train.allreduce"
SIZES = ("1", "10", "100")  # megabytes
PAIRS = 15
BLOCK = 60.0  # megabytes that one measurement moves, at least
LEAST, MOST = 2, 40  # all-reduces in one measurement


def main() -> None:
    ranks, sizes = int(sys.argv[1]), sys.argv[2:] or SIZES
    if contract.RANK in os.environ:
        play(sizes)
        return
    with gang(["-m", ME, str(ranks), *sizes], "allreduce", workers=ranks, servers=0) as running:
        running.start()
        print(json.dumps(running.said("worker-0")[-1]))


def play(sizes: tuple[str, ...] | list[str]) -> None:
    torch.set_num_threads(1)
    world = World.read()
    dist.init_process_group("gloo", rank=world.rank, world_size=world.size)
    group = make(world, Seeing())
    found = {size: compare(float(size), group.all_reduce, dist.all_reduce) for size in sizes}
    if world.rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    group.leave()
    # torch 2.13 with gloo aborts in one interpreter exit of twenty ("terminate called without an active exception").
    sys.stdout.flush()
    os._exit(0)


def compare(
    megabytes: float, ours: Callable[[torch.Tensor], object], theirs: Callable[[torch.Tensor], object]
) -> dict[str, list[float]]:
    tensor = torch.zeros(int(megabytes * 250_000))
    count = max(LEAST, min(MOST, int(BLOCK / megabytes)))
    milliseconds(ours, tensor, count), milliseconds(theirs, tensor, count)
    found: dict[str, list[float]] = {"ours": [], "gloo": []}
    for number in range(PAIRS):
        sides = [("ours", ours), ("gloo", theirs)]
        for name, side in sides if number % 2 else reversed(sides):
            found[name].append(milliseconds(side, tensor, count))
    return found


def milliseconds(reduce: Callable[[torch.Tensor], object], tensor: torch.Tensor, count: int) -> float:
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        reduce(tensor)
    return (time.perf_counter() - began) / count * 1000


if __name__ == "__main__":
    main()
