"""Parameter servers with real processes: equal to one process, through the death of servers and workers."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.train.support import Running, run_world

# Three models in one launch: starting interpreters is what costs. Every number is whole or a power of two.
EQUAL = """
import json
import torch
from torch import nn
from shoal import train
from tests.train.sync.central import batch, linear, loss_of

torch.set_num_threads(1)
MAKE = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=2.0**-6),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=2.0**-6, momentum=0.5),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=2.0**-4),
}

def alone(size, make, steps):
    model = linear()
    optimizer = make(model)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            loss_of(model, *batch(rank, step)).backward()
        for one in model.parameters():
            one.grad.div_(size)
        optimizer.step()
    return model

with train.start() as run:
    for name, make in MAKE.items():
        model = linear(seed=1 + 5 * run.rank)
        optimizer = make(model)
        run.wrap(model, optimizer)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, *batch(run.rank, step)).backward()
            optimizer.step()
        expected = alone(run.size, make, 3)
        same = all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters()))
        print(json.dumps({"name": name, "same": same}), flush=True)
"""


@pytest.mark.real
@pytest.mark.parametrize(("workers", "servers", "nodes"), [(2, 1, 1), (4, 2, 2)])
def test_ps_sync_equals_one_process_with_all_batches(workers: int, servers: int, nodes: int) -> None:
    result = run_world(EQUAL, workers, servers, "ps-sync", nodes=nodes, timeout=100).check()
    for rank in range(workers):
        told = [json.loads(line) for line in result.lines(f"worker-{rank}", "{")]
        assert told == [{"name": name, "same": True} for name in ("sgd", "momentum", "adam")]


# The gradient does not depend on the weights: the sum over all steps tells whether each counted exactly once.
# A few steps behind each kill the workers wait until it has happened, so that none comes too late.
COUNT = """
import json
import time
from pathlib import Path
import torch
from torch import nn
from shoal import train

torch.set_num_threads(1)
STEPS, WIDTH, RATE = 200, 200_000, 2.0**-3
with train.start() as run:
    model = nn.ParameterList([nn.Parameter(torch.zeros(WIDTH))])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    run.wrap(model, optimizer)
    for step in range(STEPS):
        model[0].grad = torch.full((WIDTH,), float(1 + (step + run.rank) % 3))
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}", flush=True)
        while step in (60, 110, 160) and not Path(f"killed-{step - 10}").exists():
            time.sleep(0.001)
    run.group().gather(0)
    model[0].grad = torch.zeros(WIDTH)
    optimizer.step()
    run.group().gather(0)
    expected = -RATE * sum(1 + (step + rank) % 3 for rank in range(run.size) for step in range(STEPS))
    found = model[0].detach()
    print(json.dumps({"least": float(found.min()), "most": float(found.max()), "expected": expected}), flush=True)
"""


def serving(world: Running) -> int:
    """The process that serves now, a child of the one that keeps the socket."""
    return int(re.findall(r"process (\d+) serves", world.said("server-0", "err"))[-1])


@pytest.mark.real
def test_a_killed_server_loses_and_doubles_nothing() -> None:
    def trouble(world: Running) -> None:
        for step in (50, 100, 150):
            world.wait_for("worker-0", rf"^step {step}$")
            killed = serving(world)
            os.kill(killed, signal.SIGKILL)
            (world.folder / f"killed-{step}").touch()
            world.wait_for("server-0", rf"process {killed} serves[\s\S]*process \d+ serves", stream="err")

    result = run_world(COUNT, 2, 1, "ps-async", during=trouble, timeout=100).check()
    assert result.stderr["server-0"].count("serves at port") == 4, result.told()
    for rank in range(2):
        (told,) = [json.loads(line) for line in result.lines(f"worker-{rank}", "{")]
        assert told["least"] == told["most"] == told["expected"], told


GO_ON = """
import torch
from torch import nn
from shoal import train

torch.set_num_threads(1)
with train.start() as run:
    model = nn.Linear(50, 50)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
    run.wrap(model, optimizer)
    for step in range(10**9 if run.rank == 1 else 600):
        optimizer.zero_grad()
        model(torch.ones(1, 50)).sum().backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}", flush=True)
    print("done", flush=True)
"""


@pytest.mark.real
def test_a_killed_worker_does_not_hold_the_others_up() -> None:
    def kill(world: Running) -> None:
        world.wait_for("worker-1", r"^step 200$")
        world.kill("worker-1")

    result = run_world(GO_ON, 3, 1, "ps-ssp:staleness=3", during=kill, timeout=100)
    assert result.returncodes["worker-0"] == result.returncodes["worker-2"] == 0, result.told()
    assert result.lines("worker-0", "done") and result.lines("worker-2", "done")
    assert "worker-1 left (its connection ended); 2 workers go on" in result.stderr["server-0"]
