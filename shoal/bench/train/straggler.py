"""What one slow worker of four costs all of them: samples a second with it, and without it, by turns in one run.

`python -m shoal.bench.train.straggler STRATEGY [SLOWER]` prints one JSON line: {"slow": samples/s, "even": samples/s,
"ratio": median over the pairs of blocks, "pairs": […]}. Computing is a sleep, so that four workers fit on two cores;
the exchange is real, of a model of 1 MB. With one worker k times slower, nobody can be better than (3 + 1/k) / 4.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from shoal.bench.train.gang import gang
from shoal.strategy import parse

ME = "shoal.bench.train.straggler"
WORKERS, SLOWER = 4, 5.0
COMPUTE = 0.05  # seconds of a step
BATCH = 32
BLOCK = 3.0  # seconds
PAIRS = 4
WARM_UP = 2.0  # seconds
WIDTH = 512  # 1 MB of parameters


def main() -> None:
    strategy, slower = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else SLOWER
    if "SHOAL_RANK" in os.environ:
        work(slower)
        return
    servers = 1 if parse(strategy).kind.servers else 0
    with gang(["-m", ME, *sys.argv[1:]], strategy, WORKERS, servers) as here:
        here.start()
        said = [here.said(f"worker-{rank}")[-1]["steps"] for rank in range(WORKERS)]
    print(json.dumps(figures(said)), flush=True)


def figures(steps: list[list[int]]) -> dict[str, Any]:
    """Steps of every worker in every block: even, slow, even, slow …"""
    rates = [sum(of_block) * BATCH / BLOCK for of_block in zip(*steps, strict=True)]
    even, slow = rates[0::2], rates[1::2]
    pairs = [two / one for one, two in zip(even, slow, strict=True)]
    return {"slow": median(slow), "even": median(even), "ratio": median(pairs), "pairs": pairs}


def work(slower: float) -> None:
    import torch

    from shoal import train

    with train.start() as run:
        model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        run.wrap(model, optimizer)
        inputs = torch.randn(BATCH, WIDTH)
        counted, begin = [0] * (2 * PAIRS), _together(run.world.outputs, run.rank) + WARM_UP
        while (block := int((time.time() - begin) // BLOCK)) < len(counted):
            time.sleep(COMPUTE * (slower if block % 2 and run.rank == WORKERS - 1 else 1.0))
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = int((time.time() - begin) // BLOCK)
            if 0 <= now < len(counted):
                counted[now] += 1
        print(json.dumps({"steps": counted}), flush=True)


def _together(folder: Path, rank: int) -> float:
    """A moment that is the same for all: when the last one had come."""
    (folder / f"ready-{rank}").touch()
    marks = [folder / f"ready-{other}" for other in range(WORKERS)]
    while not all(mark.exists() for mark in marks):
        time.sleep(0.005)
    return max(mark.stat().st_mtime for mark in marks)


if __name__ == "__main__":
    main()
