"""torch RPC as a parameter server, to be compared with: one server holds the parameters, two workers send gradients and
get parameters back, each in one call. What its own tutorial does, with one flat tensor, which suits it best.

`python -m shoal.bench.train.ps_rpc MEGABYTES ROUNDS` starts the three and prints one JSON line: seconds that a worker
needs for one push and pull while the other does the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median

import torch
from torch.distributed import rpc

from shoal._lib.ports import free_ports

WORKERS = 2
RATE = 2.0**-10
SERVER = "server"
LIMIT = 180  # seconds for all of it

_parameters = torch.empty(0)


def main() -> None:
    megabytes, rounds = int(sys.argv[1]), int(sys.argv[2])
    if "RANK" in os.environ:
        play(int(os.environ["RANK"]), megabytes, rounds)
    else:
        direct()


def direct() -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "shoal.bench.train.ps_rpc", *sys.argv[1:]]
    ranks = [
        subprocess.Popen(argv, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(WORKERS + 1)
    ]
    try:
        said = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    seconds = [json.loads(text)["seconds"] for text in said[1:]]
    print(json.dumps({"seconds": sum(seconds) / len(seconds)}), flush=True)


def play(rank: int, megabytes: int, rounds: int) -> None:
    count = megabytes * 1_000_000 // 4
    name = f"worker-{rank}" if rank else SERVER
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=LIMIT)
    rpc.init_rpc(name, rank=rank, world_size=WORKERS + 1, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    if rank:
        print(json.dumps({"seconds": train(count, rounds)}), flush=True)
    rpc.shutdown()


def train(count: int, rounds: int) -> float:
    rpc.rpc_sync(SERVER, hold, args=(count,))
    gradient, own, taken = torch.ones(count), torch.zeros(count), []
    for _ in range(rounds):
        began = time.perf_counter()
        own.copy_(rpc.rpc_sync(SERVER, push_and_pull, args=(gradient,)))
        taken.append(time.perf_counter() - began)
    return median(taken[1:])


def hold(count: int) -> None:
    global _parameters
    if not _parameters.numel():
        _parameters = torch.zeros(count)


def push_and_pull(gradient: torch.Tensor) -> torch.Tensor:
    return _parameters.sub_(gradient, alpha=RATE)


if __name__ == "__main__":
    main()
