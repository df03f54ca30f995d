"""Partitions under `run`: checkpoints go on with other workers and strategies, and scripts stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.support import run_world

# Epochs of two steps; the batch of a step is the same whatever the number of workers.
GOES_ON = """
import torch
from shoal import train
from tests.train.partition.models import Gpt, word_loss, words

def part(run, value):
    return value.chunk(run.replicas)[run.replica]

def trained(model, step, optimizer, scheduler, epochs):
    for epoch in epochs:
        for number in range(2):
            step(*words(16, 2 * epoch + number))
        scheduler.step()
        yield epoch

torch.manual_seed(0)
model = Gpt()
# With its usual eps, Adam makes rounding errors of gradients that are zero as large as its rate.
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
with train.start() as run:
    model, optimizer = run.wrap(model, optimizer)
    run.remember(scheduler=scheduler)
    step = lambda x, y: run.report(loss=run.step(model, word_loss, part(run, x), part(run, y)))
    for epoch in trained(model, step, optimizer, scheduler, run.epochs(EPOCHS)):
        run.save(epoch)
    found = model.state_dict()
    assert optimizer.param_groups[0]["lr"] == 0.01 * 0.5 ** EPOCHS

torch.manual_seed(0)
plain = Gpt()
optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01, eps=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
def alone(x, y):
    word_loss(plain(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
list(trained(plain, alone, optimizer, scheduler, range(EPOCHS)))
for name, value in plain.state_dict().items():
    torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)
print("ok", EPOCHS)
"""


@pytest.mark.real
def test_a_checkpoint_goes_on_with_other_numbers_of_workers_and_another_strategy(tmp_path: Path) -> None:
    alone = (1, "fsdp")  # cuts nothing: as under every strategy that leaves the model whole
    ways = [(2, "fsdp:block=0"), (3, "pipeline:replicas=2x1"), alone, (2, "tensor")]
    for epochs, (workers, strategy) in enumerate(ways, start=1):
        script = GOES_ON.replace("EPOCHS", str(epochs))
        result = run_world(script, workers=workers, strategy=strategy, folder=tmp_path, timeout=100).check()
        assert result.lines("worker-0", "ok") == [f"ok {epochs}"]


STAYS_THEIRS = """
import torch
from torch import nn
from shoal import train
from shoal.train.errors import TrainError
from tests.train.partition.models import Mlp, numbers

def losses(wrap, part, scale):
    torch.manual_seed(0)
    model = Mlp()
    first, second = (torch.optim.SGD(model[at].parameters(), lr=0.1) for at in (0, 6))
    model, first, second = wrap(model, first, second)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for step in range(4):
        for half in range(2):  # accumulation
            x, y = (part(one) for one in numbers(8, 2 * step + half))
            scaler.scale(nn.functional.mse_loss(model(x), y) / 2).backward()
        scaler.unscale_(first)
        nn.utils.clip_grad_norm_(model[0].parameters(), 0.5)
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        first.zero_grad(), second.zero_grad(), model.zero_grad()

    def closure():
        first.zero_grad()
        x, y = (part(one) for one in numbers(8, 77))
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    first.step(closure)
    return model

def wrapped(strategy):
    with train.start(strategy) as run:
        part = lambda one: one.chunk(run.replicas)[run.replica]
        model = losses(run.wrap, part, 4.0)
        if run.rank == 0:
            run.report(loss=float("nan"))  # only one worker looks closer at the next step
        x, y = (part(one) for one in numbers(8, 5))
        run.step(model, nn.functional.mse_loss, x, y)
        return model, {name: value.clone() for name, value in model.state_dict().items()}

plain = losses(lambda *all: all, lambda one: one, 4.0)
nn.functional.mse_loss(plain(numbers(8, 5)[0]), numbers(8, 5)[1]).backward()
with torch.no_grad():
    for at in (0, 6):
        for one in plain[at].parameters():
            one -= 0.1 * one.grad
for strategy in ("fsdp:block=0", "tensor"):
    model, found = wrapped(strategy)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5, msg=name)
    try:
        model.state_dict()
    except TrainError as error:
        assert "after the run has ended" in str(error)
        print("ok", strategy)
"""


@pytest.mark.real
def test_accumulation_scaling_clipping_two_optimizers_and_closures_keep_their_meaning(tmp_path: Path) -> None:
    result = run_world(STAYS_THEIRS, workers=2, folder=tmp_path, timeout=100).check()
    assert result.lines("worker-0", "ok") == ["ok fsdp:block=0", "ok tensor"]
