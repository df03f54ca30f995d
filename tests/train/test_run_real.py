"""Runs of real processes: stopping together, noticing who is missing, not outliving an error."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.train.support import Running, run_world

pytestmark = pytest.mark.real

HEAD = """
    import os, sys, time
    from pathlib import Path
    import torch
    from torch import nn
    from shoal import train

    def step(run, model, optimizer):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def wrapped(run):
        model = nn.Linear(2, 1)
        return run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.001))
"""

UNTIL_STOPPED = (
    HEAD
    + """
    with train.start() as run:
        model, optimizer = wrapped(run)
        while not run.should_stop():
            step(run, model, optimizer)
            run.report(loss=1.0)
            if run.tally.step == 20:
                print("trains", flush=True)
        print("stopped at", run.tally.step, flush=True)
"""
)


def test_workers_in_step_stop_at_the_same_step_when_one_is_told(tmp_path: Path) -> None:
    def tell_one(world: Running) -> None:
        for name in ("worker-0", "worker-1"):
            world.wait_for(name, "trains")
        world.signal("worker-1", signal.SIGTERM)

    result = run_world(UNTIL_STOPPED, strategy="local-sgd:every=2", during=tell_one, folder=tmp_path).check()
    said = [result.lines(name, "stopped at")[0] for name in ("worker-0", "worker-1")]
    assert said[0] == said[1]
    assert result.lines("worker-0", "progress step=")[-1].endswith("loss=1")
    for name in ("worker-0", "worker-1"):
        rows = [json.loads(row) for row in (tmp_path / "outputs/metrics" / f"{name}.jsonl").read_text().splitlines()]
        assert str(rows[-1]["step"]) == said[0].split()[-1]
        assert sum(row["steps"] for row in rows) == rows[-1]["step"]


HANGS = (
    HEAD
    + """
    def waits_here():
        while not Path("go").exists():
            time.sleep(0.02)

    with train.start() as run:
        model, optimizer = wrapped(run)
        step(run, model, optimizer)
        if run.rank == 1:
            waits_here()
        for _ in range(3):
            step(run, model, optimizer)
    print("done", flush=True)
"""
)


def test_a_long_wait_names_who_is_missing_and_where_it_stands() -> None:
    def until_noticed(world: Running) -> None:
        world.wait_for("worker-0", "has waited", stream="err")
        world.wait_for("worker-0", r"worker-1's main thread is in script\.py:\d+ \(waits_here\)", stream="err")
        (world.folder / "go").touch()

    env = {"SHOAL_TRAIN_NOTICE": "0.4"}
    result = run_world(HANGS, strategy="local-sgd:every=2", env=env, during=until_noticed).check()
    notice = result.stderr["worker-0"].split("has waited")[1].splitlines()[0]
    assert "worker-1" in notice


RAISES = (
    HEAD
    + """
    with train.start() as run:
        model, optimizer = wrapped(run)
        for number in range(100000):
            if run.rank == 1 and number == 5:
                raise ZeroDivisionError("the script's own fault")
            step(run, model, optimizer)
"""
)


@pytest.mark.parametrize("strategy", ["local-sgd:every=1"])
def test_an_error_on_one_worker_is_not_waited_for_on_the_others(strategy: str) -> None:
    result = run_world(RAISES, strategy=strategy, timeout=60)
    assert result.returncodes["worker-1"] == 1 and "the script's own fault" in result.stderr["worker-1"]
    assert result.returncodes["worker-0"] == 1 and "PeerLost: worker-1 is gone" in result.stderr["worker-0"]


SLOW = (
    HEAD
    + """
    with train.start() as run:
        model, optimizer = wrapped(run)
        for _ in range(60):
            if run.rank == 1:
                time.sleep(0.04)  # a slow worker: backward takes as long on the other, which waits for it there
            step(run, model, optimizer)
            run.report(loss=1.0)
"""
)


@pytest.mark.parametrize("strategy", ["allreduce", "ps-sync"])
def test_a_slow_worker_is_named_by_its_arrival(strategy: str) -> None:
    result = run_world(SLOW, strategy=strategy).check()
    assert "worker-1 comes last to the exchange" in result.stderr["worker-0"]
    rows = (result.outputs / "metrics/worker-0.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["straggler"]["member"] == "worker-1"
