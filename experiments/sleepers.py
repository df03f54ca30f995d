"""Four real processes whose compute is sleep, through the library as a job would start it: how many steps a second?

One world for each strategy; in it nobody is slow first, then one worker is, more and more, and so on in turn, so that a
machine that is busy for a while disturbs all alike; of the turns the median counts. A phase is so many steps for
workers that go in step, so many seconds for the others; what each has done is added up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from shoal.bench.train.gang import gang
from shoal.strategy import parse

WORKERS, SLEEP, WIDTH = 4, 0.02, 64
SLOWER = (1.0, 2.0, 10.0)
STRATEGIES = ("allreduce", "ps-async", "gossip")
FREE = ("ps-async", "gossip")
TURNS = 5
WARM = 10  # steps before anything is counted
LIMIT = 300.0


def rates(seconds: float) -> dict[str, list[float]]:
    """Steps a second of all workers together, for each of SLOWER, from phases of about so many seconds."""
    found = {}
    for strategy in STRATEGIES:
        servers = 1 if parse(strategy).kind.servers else 0
        with gang([str(Path(__file__).resolve()), str(seconds)], strategy, WORKERS, servers) as here:
            here.start()
            said = [here.said(f"worker-{rank}", LIMIT)[-1]["rates"] for rank in range(WORKERS)]
        every = [sum(each) for each in zip(*said, strict=True)]
        found[strategy] = [median(every[place :: len(SLOWER)]) for place in range(len(SLOWER))]
    return found


def work(seconds: float) -> None:
    import torch

    from shoal import train

    torch.set_num_threads(1)
    with train.start() as run:
        model = torch.nn.Linear(WIDTH, WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        run.wrap(model, optimizer)

        def step(by: float) -> None:
            time.sleep(SLEEP * (by if run.rank == 0 else 1.0))
            optimizer.zero_grad()
            model(torch.ones(1, WIDTH)).square().mean().backward()
            optimizer.step()

        for _ in range(WARM):
            step(1.0)
        free = run.strategy.name in FREE
        print(json.dumps({"rates": [_phase(step, by, seconds, free) for by in SLOWER * TURNS]}), flush=True)


def _phase(step: Callable[[float], None], by: float, seconds: float, free: bool) -> float:
    """This worker's steps a second."""
    began, done = time.perf_counter(), 0
    enough = max(3, int(seconds / SLEEP / by))
    while time.perf_counter() - began < seconds if free else done < enough:
        step(by)
        done += 1
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    if "SHOAL_RANK" in os.environ:
        work(float(sys.argv[1]))
    else:
        print(json.dumps(rates(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)), flush=True)
