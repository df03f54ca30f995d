"""Steps a second of a plain script and of the same script with Shoal's lines in it, in a world of one, in turn.

`python -m shoal.bench.train.world_one [pairs]` prints one JSON line: {"ratio", "plain", "wrapped"} (medians), on the
GPU where there is one. The model is small, so that what is added to a step shows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from shoal import train

PAIRS = 300
STEPS = 50
WARM_UP = 10
WIDTH, BATCH = 256, 64

Data = list[tuple[torch.Tensor, torch.Tensor]]


def model_and_optimizer(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
    model = nn.Sequential(*layers).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def batches(device: torch.device) -> Data:
    x, y = torch.randn(BATCH, WIDTH, device=device), torch.randint(10, (BATCH,), device=device)
    return [(x, y)] * STEPS


def plain(model: Any, optimizer: Any, data: Any) -> None:
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def wrapped(run: train.Run, model: Any, optimizer: Any, data: Any) -> None:
    for x, y in run.shard(data):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        run.report(loss=loss)


def rate(call: Callable[[Data], None], data: Data, device: torch.device) -> float:
    """Steps a second, after some that do not count."""
    call(data[:WARM_UP])
    begin = time.perf_counter()
    call(data)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return STEPS / (time.perf_counter() - begin)


def measure(pairs: int) -> dict[str, float]:
    """The same model and optimizer for both, wrapped and plain again in turn: where memory lies makes more difference
    than what is measured."""
    torch.set_num_threads(1)
    with train.start() as run:
        device = run.device
    model, optimizer = model_and_optimizer(device)
    data, figures = batches(device), list[tuple[float, float]]()
    for number in range(pairs + 1):
        ours = [_wrapped(model, optimizer, data)] if number % 2 else []
        theirs = rate(lambda some: plain(model, optimizer, some), data, device)
        ours = ours or [_wrapped(model, optimizer, data)]
        figures.append((theirs, ours[0]))
    return {
        "ratio": median(mine / other for other, mine in figures[1:]),
        "plain": median(other for other, _ in figures[1:]),
        "wrapped": median(mine for _, mine in figures[1:]),
    }


def _wrapped(model: Any, optimizer: Any, data: Any) -> float:
    with train.start() as run:
        run.wrap(model, optimizer)
        return rate(lambda some: wrapped(run, model, optimizer, some), data, run.device)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS)))
