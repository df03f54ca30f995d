"""Rows a second that one server pulls and pushes: a table of ten million rows, 4,096 rows of 64 floats in a step.

`python -m shoal.bench.train.ps_sparse` starts a server and a worker and prints one JSON line.
"""

from __future__ import annotations

import json
import os
import time
from statistics import median

import torch

from shoal import contract
from shoal.bench.train.gang import gang
from shoal.train.ps.rows import TableInfo
from shoal.train.ps.table_client import Remote
from shoal.train.seeing import Seeing
from shoal.train.world import World

ROWS, DIM, TOUCHED = 10_000_000, 64, 4096
WARM_UP, STEPS, PARTS = 20, 40, 5
ME = "shoal.bench.train.ps_sparse"


def main() -> None:
    if contract.RANK in os.environ:
        play()
        return
    with gang(["-m", ME], "ps-async", workers=1) as running:
        running.start()
        print(json.dumps(running.said("worker-0")[-1]))


def play() -> None:
    """The median of several parts; each step asks for other rows, so that the table keeps growing."""
    torch.set_num_threads(1)
    table = Remote(TableInfo("bench", ROWS, DIM, "adagrad"), World.read(), Seeing())
    dice = torch.Generator().manual_seed(0)
    _steps(table, dice, WARM_UP)
    rates = [_steps(table, dice, STEPS) for _ in range(PARTS)]
    print(json.dumps({"rows_per_s": median(rates), "rows": table.facts()["rows"]}), flush=True)
    table.close()


def _steps(table: Remote, dice: torch.Generator, count: int) -> float:
    moved, grads = 0, torch.ones(TOUCHED, DIM)
    begin = time.perf_counter()
    for _ in range(count):
        rows = torch.unique(torch.randint(0, ROWS, (TOUCHED,), generator=dice))
        table.pull(rows, training=True)
        table.push(rows, grads[: len(rows)], {})
        moved += len(rows)
    return moved / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
