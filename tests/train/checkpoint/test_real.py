"""Real processes: killed in the middle of an epoch, a run goes on as if nothing had been, or with more workers."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.train.support import Result, run_world

SCRIPT = """
import json, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from shoal import train

dies_at = int(sys.argv[1])
torch.manual_seed(1)
with train.start() as run:
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer = run.wrap(model, optimizer)
    run.remember(scheduler=scheduler)
    loader = DataLoader(TensorDataset(torch.arange(24.0).view(24, 1)), batch_size=2, shuffle=True)
    for epoch in run.epochs(2):
        for (x,) in run.shard(loader):
            loss = run.step(model, nn.functional.mse_loss, x, x)
            print("read", json.dumps([epoch, x.flatten().tolist()]), flush=True)
            if run.tally.step == dies_at:
                run.save(epoch)
                manifest = run.world.outputs / "checkpoints" / f"step-{dies_at:08d}" / "manifest.json"
                while not manifest.exists():
                    time.sleep(0.01)
                os._exit(3)
        scheduler.step()
    print("end", json.dumps([p.detach().flatten().tolist() for p in model.parameters()]))
"""


def read(result: Result, epoch: int) -> Counter[float]:
    lines = [json.loads(line[5:]) for name in result.stdout for line in result.lines(name, "read ")]
    return Counter(number for at, numbers in lines for number in numbers if at == epoch)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_killed_run_goes_on_bit_for_bit_and_with_more_workers(tmp_path: Path) -> None:
    whole = run_world(SCRIPT, workers=2, strategy="allreduce", args=["0"]).check()
    killed = run_world(SCRIPT, workers=2, strategy="allreduce", args=["8"], folder=tmp_path / "two")
    assert killed.returncodes == {"worker-0": 3, "worker-1": 3}, killed.told()
    shutil.copytree(tmp_path / "two", tmp_path / "three")

    again = run_world(SCRIPT, workers=2, strategy="allreduce", args=["0"], folder=tmp_path / "two").check()
    assert again.lines("worker-0", "end") == whole.lines("worker-0", "end")
    assert read(killed, 1) + read(again, 1) == read(whole, 1) == Counter(range(24))
    assert not read(again, 0)

    more = run_world(SCRIPT, workers=3, strategy="allreduce", args=["0"], folder=tmp_path / "three").check()
    assert read(killed, 1) + read(more, 1) == Counter(range(24))
    assert len({line for name in more.stdout for line in more.lines(name, "end")}) == 1
