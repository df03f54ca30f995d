"""Milliseconds of one `hvd.allreduce_` of a CPU tensor and of gloo's, in turn, in the same processes.

`python -m shoal.bench.fw.hvd_allreduce <ranks> [megabytes ...]` prints one JSON line: {"1": {"ours": [...], "gloo":
[...]}}, milliseconds pair by pair.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

import shoal.adapters.hvd.torch as hvd
from shoal import contract
from shoal.bench.train.allreduce import SIZES, compare
from shoal.bench.train.gang import gang

ME = "shoal.bench.fw.hvd_allreduce"


def main() -> None:
    ranks, sizes = int(sys.argv[1]), sys.argv[2:] or list(SIZES)
    if contract.RANK in os.environ:
        play(sizes)
        return
    with gang(["-m", ME, str(ranks), *sizes], "allreduce", workers=ranks, servers=0) as running:
        running.start()
        print(json.dumps(running.said("worker-0")[-1]))


def play(sizes: list[str]) -> None:
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo", rank=hvd.rank(), world_size=hvd.size())
    found = {size: compare(float(size), _ours, dist.all_reduce) for size in sizes}
    if hvd.rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    hvd.shutdown()
    # torch 2.13 with gloo aborts in one interpreter exit of twenty ("terminate called without an active exception").
    sys.stdout.flush()
    os._exit(0)


def _ours(tensor: torch.Tensor) -> object:
    return hvd.allreduce_(tensor, op=hvd.Sum, name="gradient")


if __name__ == "__main__":
    main()
