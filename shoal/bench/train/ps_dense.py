"""Push and pull of a dense model through a parameter server on this machine: two workers, one server.

`python -m shoal.bench.train.ps_dense MEGABYTES ROUNDS` prints one JSON line: the seconds that a worker needs for one
push and pull (its gradients copied to where the server reads them, applied there, the parameters copied back) while the
other does the same, and the seconds of one plain copy of as many bytes, also in both workers at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median

from shoal.bench.train.gang import gang

WORKERS = 2
RATE = 2.0**-10
LAYERS = 8  # a model has several, and the pieces are copied one by one
BLOCK = 5  # exchanges, then copies, then exchanges …: what else the machine does hits both


def main() -> None:
    megabytes, rounds = int(sys.argv[1]), int(sys.argv[2])
    if "SHOAL_RANK" in os.environ:
        work(megabytes, rounds)
        return
    with gang(["-m", "shoal.bench.train.ps_dense", *sys.argv[1:]], "ps-async", WORKERS) as here:
        here.start()
        said = [here.said(f"worker-{rank}")[-1] for rank in range(WORKERS)]
    print(json.dumps({key: sum(one[key] for one in said) / WORKERS for key in said[0]}), flush=True)


def work(megabytes: int, rounds: int) -> None:
    import torch

    from shoal import train

    count = megabytes * 1_000_000 // 4
    with train.start() as run:
        model = torch.nn.ParameterList([torch.zeros(count // LAYERS) for _ in range(LAYERS)])
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        run.wrap(model, optimizer)
        for one in model:
            one.grad = torch.ones_like(one)
        source, target = torch.ones(count), torch.zeros(count)
        exchanged: list[float] = []
        copied: list[float] = []
        for _ in range(1 + rounds // BLOCK):
            run.group().gather(0)
            exchanged += timed(optimizer.step)
            run.group().gather(0)
            copied += timed(lambda: target.copy_(source))
    # Without the first block, which touches memory for the first time.
    print(json.dumps({"seconds": median(exchanged[BLOCK:]), "copy": median(copied[BLOCK:])}), flush=True)


def timed(act: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(BLOCK):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return taken


if __name__ == "__main__":
    main()
