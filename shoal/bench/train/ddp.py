"""Steps a second of one model under `allreduce` and under DistributedDataParallel with gloo, in turn in one gang.

`python -m shoal.bench.train.ddp comm|compute [pairs]` prints one JSON line: the steps a second of both sides, pair by
pair. `comm` is a table with a dense gradient, where each parameter has almost nothing to compute; `compute` a network
with a large batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shoal import contract, train
from shoal.bench.train.gang import gang

ME = "shoal.bench.train.ddp"
PAIRS = 15
WARM_UP = 2  # blocks
STEPS = 10  # in a block
WIDTH, LAYERS, BATCH = 512, 4, 384
TABLES, ROWS, DIM, LOOKED_UP = 8, 50_000, 64, 256  # 102 MB of parameters

Made = tuple[nn.Module, Tensor, Tensor]


class Tables(nn.Module):
    """Rows of several tables, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(ROWS, DIM, mode="sum") for _ in range(TABLES)])
        self.last = nn.Linear(DIM, 1)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(sum(table(rows) for table in self.tables))  # type: ignore[no-any-return]


def comm() -> Made:
    return Tables(), torch.randint(0, ROWS, (LOOKED_UP, 4)), torch.randn(LOOKED_UP, 1)


def compute() -> Made:
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


KINDS: dict[str, Callable[[], Made]] = {"comm": comm, "compute": compute}


def main() -> None:
    kind, pairs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else PAIRS
    if contract.RANK in os.environ:
        play(KINDS[kind], pairs)
        return
    with gang(["-m", ME, kind, str(pairs)], "allreduce", workers=2, servers=0) as running:
        running.start()
        print(json.dumps(running.said("worker-0")[-1]))


def play(make: Callable[[], Made], pairs: int) -> None:
    with train.start() as run:
        dist.init_process_group("gloo", rank=run.rank, world_size=run.size)
        own, x, y = make()
        model, optimizer = run.wrap(own, torch.optim.SGD(own.parameters(), lr=0.01))
        ours = stepper(model, optimizer, x, y)
        other = DistributedDataParallel(make()[0])
        theirs = stepper(other, torch.optim.SGD(other.parameters(), lr=0.01), x, y)
        found: dict[str, list[float]] = {"ours": [], "gloo": []}
        for number in range(WARM_UP + pairs):
            sides = [("ours", ours), ("gloo", theirs)]
            for name, side in sides if number % 2 else reversed(sides):
                found[name].append(speed(side))
        if run.rank == 0:
            print(json.dumps({name: figures[WARM_UP:] for name, figures in found.items()}), flush=True)
        dist.barrier()
        dist.destroy_process_group()


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def speed(step: Callable[[], None]) -> float:
    """Steps a second of a block, which all ranks begin and end together."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    dist.barrier()
    return STEPS / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
