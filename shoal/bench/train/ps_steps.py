"""Steps a second under `ps-async`, summed over the workers.

`python -m shoal.bench.train.ps_steps dense WIDTH BATCH STEPS`: the perceptron that TensorFlow's parameter servers train
in `ps_tensorflow`, two workers. `… slow FACTOR`: four workers whose batches take a fixed time (asleep, because the
machine has fewer cores than workers), those of the last one FACTOR times as long. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from shoal.bench.train.gang import gang

INPUTS, OUTPUTS = 256, 10
RATE = 0.01
WARM_UP = 20  # steps
COMPUTE = 0.02  # seconds that a batch takes in `slow`
LASTING = 6.0  # seconds of `slow`


def main() -> None:
    kind = sys.argv[1]
    if "SHOAL_RANK" in os.environ:
        dense(*map(int, sys.argv[2:5])) if kind == "dense" else slow(float(sys.argv[2]))
        return
    workers = 2 if kind == "dense" else 4
    with gang(["-m", "shoal.bench.train.ps_steps", *sys.argv[1:]], "ps-async", workers) as here:
        here.start()
        said = [here.said(f"worker-{rank}")[-1] for rank in range(workers)]
    print(json.dumps({"steps_per_s": sum(one["steps_per_s"] for one in said)}), flush=True)


def dense(width: int, batch: int, steps: int) -> None:
    import torch
    from torch import nn

    from shoal import train

    torch.set_num_threads(1)
    with train.start() as run:
        model = nn.Sequential(
            nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, OUTPUTS)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        run.wrap(model, optimizer)
        y = torch.zeros(batch, dtype=torch.long)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.rand(batch, INPUTS)), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        for _ in range(WARM_UP // run.size):
            step()
        run.group().gather(0)
        began = time.perf_counter()
        for _ in range(steps // run.size):
            step()
        taken = time.perf_counter() - began
    print(json.dumps({"steps_per_s": steps // run.size / taken}), flush=True)


def slow(factor: float) -> None:
    import torch
    from torch import nn

    from shoal import train

    torch.set_num_threads(1)
    with train.start() as run:
        model = nn.Linear(100, 100)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        run.wrap(model, optimizer)
        pause = COMPUTE * (factor if run.rank == run.size - 1 else 1.0)

        def step() -> None:
            time.sleep(pause)
            optimizer.zero_grad()
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()

        step()
        run.group().gather(0)
        found = counted(step)
    print(json.dumps({"steps_per_s": found}), flush=True)


def counted(step: Callable[[], None]) -> float:
    """As many as there is time for; the last one is counted by the part of it that fits."""
    began, done = time.perf_counter(), 0
    while True:
        step()
        taken = time.perf_counter() - began
        done += 1
        if taken >= LASTING:
            return done / taken


if __name__ == "__main__":
    main()
