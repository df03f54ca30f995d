"""What the training library costs on a GPU. `python -m shoal.bench.train.gpu world|ps|save` prints one JSON line.

world   a step of a wrapped model in a world of one, next to the plain step: seconds of both
ps      push and pull of a 500 MB model by two workers on one card, next to copies of as many bytes by pinned memory
save    how long a checkpoint holds training up, next to one copy of the same bytes to pinned memory
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from shoal import contract
from shoal.bench.train.gang import gang

ME = "shoal.bench.train.gpu"
WIDTH, LAYERS, BATCH = 4096, 8, 512  # 537 MB of parameters
MEGABYTES, WORKERS = 500, 2
THREADS, CHUNK = 8, 4  # of the server: cores, and MiB that they work at together
ROUNDS, WARM_UP = 20, 3


def main() -> None:
    what = {"world": world, "ps": ps, "save": save}[sys.argv[1]]
    print(json.dumps(what()), flush=True)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()


def world() -> dict[str, Any]:
    """Both in one process, in turn."""
    from shoal import train

    plain, wrapped = model(), model()
    ours, theirs = (torch.optim.SGD(one.parameters(), lr=1e-4) for one in (wrapped, plain))
    batch = torch.randn(BATCH, WIDTH, device="cuda")
    with train.start() as run:
        run.wrap(wrapped, ours)
        mine: list[float] = []
        yours: list[float] = []
        for _ in range(WARM_UP + ROUNDS):
            mine.append(_timed(lambda: _step(wrapped, ours, batch)))
            yours.append(_timed(lambda: _step(plain, theirs, batch)))
    return {"wrapped": median(mine[WARM_UP:]), "plain": median(yours[WARM_UP:]), "card": _card()}


def _step(one: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    for _ in range(5):
        one(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ps() -> dict[str, Any]:
    if contract.RANK in os.environ:
        return _work()
    with gang(["-m", ME, "ps"], f"ps-async:chunk={CHUNK}", WORKERS, env={"OMP_NUM_THREADS": str(THREADS)}) as running:
        running.start()
        said = [running.said(f"worker-{rank}")[-1] for rank in range(WORKERS)]
    return {**said[0], **{key: sum(one[key] for one in said) / WORKERS for key in ("seconds", "copies")}}


def _work() -> dict[str, Any]:
    """One worker: exchanges, and plain copies there and back, all workers at the same time."""
    from shoal import train

    count = MEGABYTES * 1_000_000 // 4
    with train.start(device="cuda:0") as run:
        parts = nn.ParameterList([torch.zeros(count // 8, device="cuda") for _ in range(8)])
        optimizer = torch.optim.SGD(parts.parameters(), lr=2.0**-10)
        run.wrap(parts, optimizer)
        for one in parts:
            one.grad = torch.ones_like(one)
        device, host = torch.ones(count, device="cuda"), torch.empty(count, pin_memory=True)
        exchanged, copied = [], []
        for _ in range(WARM_UP + ROUNDS):
            run.group().gather(0)
            exchanged.append(_timed(optimizer.step))
            run.group().gather(0)
            copied.append(
                _timed(lambda: (host.copy_(device, non_blocking=True), device.copy_(host, non_blocking=True)))
            )
    return {"seconds": median(exchanged[WARM_UP:]), "copies": median(copied[WARM_UP:]), "card": _card()}


def save() -> dict[str, Any]:
    """The call of save, with the writer of the one before at rest; and the plain copy."""
    os.environ[contract.OUTPUTS] = tempfile.mkdtemp(prefix="shoal-gpu-")
    from shoal import train

    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-4)
    batch = torch.randn(BATCH, WIDTH, device="cuda")
    held, copied = [], []
    with train.start() as run:
        run.wrap(one, optimizer)
        for number in range(6):
            _step(one, optimizer, batch)
            held.append(_timed(lambda number=number: run.save(number, keep=1)))  # type: ignore[misc]
            run._keeper._writer.wait()
            copied.append(_timed(lambda: _to_host(one)))
    return {"held": median(held[1:]), "copy": median(copied[1:]), "card": _card()}


_host: dict[int, torch.Tensor] = {}


def _to_host(one: nn.Module) -> None:
    for at, parameter in enumerate(one.parameters()):
        if at not in _host:
            _host[at] = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=True)
        _host[at].copy_(parameter.detach(), non_blocking=True)


def _timed(act: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _card() -> str:
    return torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
