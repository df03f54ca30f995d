"""Workers of one machine push as one where the servers are elsewhere: real processes, two machines by name."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from shoal.train.ps.orders import Apply
from shoal.train.ps.rules import Sync
from tests.train.support import Running, open_world, run_world
from tests.train.test_conformance import SCRIPT, passed

pytestmark = pytest.mark.real

# Integer gradients that do not depend on the weights: the end tells whether each counted exactly once. Workers 1 and 3
# go on two steps longer, worker-3 although the one who speaks for it is done.
COUNT = """
import json, sys, time
from pathlib import Path
import torch
from torch import nn
from shoal import train

class Mine(torch.optim.SGD):
    "An optimizer that servers do not know: it runs on the workers."

torch.set_num_threads(1)
WIDTH, RATE, kind, long = 100_000, 2.0**-2, sys.argv[1], sys.argv[2] == "uneven"
with train.start() as run:
    model = nn.ParameterList([nn.Parameter(torch.full((WIDTH,), float(run.rank)))])
    optimizer = (Mine if kind == "own" else torch.optim.SGD)(model.parameters(), lr=RATE)
    run.wrap(model, optimizer)
    for step in range(10 if long and run.rank in (1, 3) else 8):
        model[0].grad = torch.full((WIDTH,), float(4 * (1 + (step + run.rank) % 3)))
        optimizer.step()
        print(f"step {step}", flush=True)
        while step == 4 and sys.argv[2] == "killed" and not Path("killed").exists():
            time.sleep(0.001)
    found = model[0].detach()
    servers = next(iter(run.units[0].sync._ways.values())).portion.servers
    told = {"least": float(found.min()), "most": float(found.max()), "sent": sum(one.moved[0] for one in servers)}
    print(json.dumps(told), flush=True)
"""
PARAMETERS = 400_000  # bytes


def expected(steps: int) -> float:
    """What the parameter comes to: workers 1 and 3 alone after the eighth step."""
    total = 0.0
    for step in range(steps):
        ranks = range(4) if step < 8 else (1, 3)
        total += sum(4 * (1 + (step + rank) % 3) for rank in ranks) / len(ranks)
    return -0.25 * total


@pytest.mark.parametrize("kind", ["sgd", "own"])
def test_a_machine_crosses_the_network_once_and_everyone_counts_once(kind: str) -> None:
    result = run_world(COUNT, 4, 1, "ps-sync", nodes=2, args=[kind, "uneven"]).check()
    told = [json.loads(result.lines(f"worker-{rank}", "{")[0]) for rank in range(4)]
    steps = {rank: 10 if rank in (1, 3) else 8 for rank in range(4)}
    assert [(one["least"], one["most"]) for one in told] == [(expected(steps[rank]),) * 2 for rank in range(4)]
    assert told[3]["sent"] == 0
    # Once a step for both, and what its mate has begun since by the time it is asked: never twice a step.
    assert 8 * PARAMETERS < told[2]["sent"] < 11 * PARAMETERS


def test_a_killed_server_loses_and_doubles_nothing_of_mates() -> None:
    def trouble(world: Running) -> None:
        world.wait_for("worker-3", r"^step 4$")
        server = int(re.findall(r"process (\d+) serves", world.said("server-0", "err"))[-1])
        os.kill(server, signal.SIGKILL)
        (world.folder / "killed").touch()

    result = run_world(COUNT, 4, 1, "ps-sync", nodes=2, args=["sgd", "killed"], during=trouble).check()
    for rank in range(4):
        told = json.loads(result.lines(f"worker-{rank}", "{")[0])
        assert told["least"] == told["most"] == expected(8)


def test_nobody_waits_for_mates_that_lost_one() -> None:
    def trouble(world: Running) -> None:
        world.wait_for("worker-3", r"^step 4$")
        world.kill("worker-3")
        (world.folder / "killed").touch()
        world.wait(["worker-2"], timeout=30)
        for name in ("worker-0", "worker-1"):  # alive: as in a job, where the attempt ends with the first who fails
            world.kill(name)

    result = run_world(COUNT, 4, 1, "ps-sync", nodes=2, args=["sgd", "killed"], during=trouble)
    assert result.returncodes["worker-2"] == 1
    assert "worker-3 is gone" in result.stderr["worker-2"]


@pytest.mark.timeout(300)
def test_mates_keep_what_every_strategy_must(tmp_path: Path) -> None:
    for phase, last in (("first", "second"), ("again", "leaves")):
        result = run_world(
            SCRIPT, 4, 2, "ps-sync:nan=skip", nodes=2, folder=tmp_path, args=[phase], timeout=150
        ).check()
        assert all(last in found for found in passed(result))


def test_the_servers_divide_by_all_who_are_spoken_for() -> None:
    rule = Sync(3)
    assert rule.leave(2) == []
    assert not any(isinstance(order, Apply) for order in rule.push(0, 1, 0, heads=2))
    (update,) = [order for order in rule.push(1, 1, 0) if isinstance(order, Apply)]
    assert update.divisor == 3


def test_a_server_that_ends_with_the_workers_does_not_wait_for_those_who_are_spoken_for() -> None:
    with open_world(COUNT, 4, 1, "ps-sync", nodes=2, args=["sgd", "even"]) as world:
        world.commands["server-0"] += ["--until-left", "4"]
        for name in world.commands:
            world.start(name)
        world.wait()
        world.wait(["server-0"], timeout=30)
        assert "all 4 workers have left" in world.said("server-0", "err")
