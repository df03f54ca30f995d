"""Real processes: shards of a killed worker are read by the others, who say so."""

from __future__ import annotations

import json

import pytest

from tests.train.support import Running, run_world

SCRIPT = """
import json, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader
from shoal import train

with train.start() as run:
    model = nn.Linear(1, 1)
    model, optimizer = run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.001))
    for epoch in run.epochs(2):
        for x in run.shard(DataLoader(torch.arange(60.0).view(60, 1), batch_size=2, shuffle=True)):
            while run.rank < 2 and not Path("held").exists():
                time.sleep(0.01)  # else there may be nothing left for a worker that comes late
            if run.rank == 2 and epoch == 0:
                Path("held").touch()
                print("holds a shard", flush=True)
                time.sleep(600)  # until it is killed
            run.step(model, nn.functional.mse_loss, x / 60, x)
            print("read", json.dumps([epoch, x.flatten().tolist()]), flush=True)
"""


def kill_one(world: Running) -> None:
    world.wait_for("worker-2", "holds a shard")
    world.kill("worker-2")


@pytest.mark.real
def test_the_shards_of_a_killed_worker_are_read_by_the_others() -> None:
    result = run_world(SCRIPT, workers=3, strategy="ps-async:data=dynamic", during=kill_one, timeout=90)
    assert [result.returncodes[f"worker-{rank}"] for rank in range(2)] == [0, 0], result.told()
    lines = [json.loads(line[5:]) for rank in range(2) for line in result.lines(f"worker-{rank}", "read ")]
    for epoch in range(2):
        assert sorted(number for at, numbers in lines for number in numbers if at == epoch) == list(range(60))
    said = result.stderr["worker-0"] + result.stderr["worker-1"]
    assert "epoch 0: every one of 30 batches was read at least once" in said and "after worker-2 left" in said
    assert "epoch 1: every one of 30 batches was read exactly once" in said
