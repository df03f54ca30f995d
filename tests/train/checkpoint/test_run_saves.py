"""A run of one, saved and taken up again by another: the same bits as without the interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from shoal import train
from shoal.train.checkpoint import published, weights
from shoal.train.errors import TrainError


class Cut(Exception):
    """The process ended here."""


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    model = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1))
    data = TensorDataset(torch.arange(44.0).view(22, 2) / 44)
    return model, torch.optim.Adam(model.parameters(), lr=0.05), DataLoader(data, batch_size=4, shuffle=True)


def training(
    folder: Path, strategy: str, cut_at: int | None = None, epochs: int = 3
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """All that training left, and the averages. `cut_at` is a step after which everything is over."""
    torch.manual_seed(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_OUTPUTS", str(folder))
        with train.start(strategy, resume=True) as run:
            model, optimizer, loader = parts()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            model, optimizer = run.wrap(model, optimizer)
            run.remember(scheduler=scheduler)
            for epoch in run.epochs(epochs):
                for (x,) in run.shard(loader):
                    run.step(model, nn.functional.mse_loss, x, x.sum(1, keepdim=True))
                    if run.tally.step == cut_at:
                        run.save(epoch)
                        raise Cut
                scheduler.step()
                run.save(epoch)
            left = [*(one.clone() for one in model.state_dict().values()), torch.rand(3)]
            return left, run.averaged()


@pytest.mark.parametrize("average", ["ema", "swa"])
@pytest.mark.parametrize("cut_at", [3, 6, 8, 17])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path, average: str, cut_at: int) -> None:
    strategy = f"allreduce:average={average}" + (",decay=0.9" if average == "ema" else "")
    whole, averaged = training(tmp_path / "whole", strategy)
    with pytest.raises(Cut):
        training(tmp_path / "cut", strategy, cut_at)
    again, averaged_again = training(tmp_path / "cut", strategy)
    assert all(torch.equal(a, b) for a, b in zip(again, whole, strict=True))
    assert all(torch.equal(averaged_again[name], averaged[name]) for name in averaged)


def test_a_run_that_was_done_has_nothing_left_to_do(tmp_path: Path) -> None:
    whole, _ = training(tmp_path, "allreduce:average=ema")
    again, _ = training(tmp_path, "allreduce:average=ema")
    assert all(torch.equal(a, b) for a, b in zip(again[:-1], whole[:-1], strict=True))


def test_averages_of_a_run_are_torchs(tmp_path: Path) -> None:
    _, mine = training(tmp_path, "allreduce:average=ema,decay=0.9")
    torch.manual_seed(4)
    model, optimizer, loader = parts()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    for _ in range(3):
        for (x,) in loader:
            nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
            optimizer.zero_grad()
            theirs.update_parameters(model)
        scheduler.step()
    assert all(torch.equal(mine[name], value) for name, value in theirs.module.state_dict().items())
    kept = weights(tmp_path / "checkpoints", averaged=True)
    assert all(torch.equal(kept[name], value) for name, value in mine.items())


def test_a_run_without_averages_says_so() -> None:
    with train.start() as run:
        model, optimizer, _ = parts()
        run.wrap(model, optimizer)
        with pytest.raises(TrainError, match="average=ema or average=swa"):
            run.averaged()


def test_a_forgotten_scheduler_is_mentioned_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_OUTPUTS", str(tmp_path))
        with train.start() as run:
            model, optimizer, _ = parts()
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
            run.wrap(model, optimizer)
            caplog.set_level("WARNING", "shoal.train")
            run.save(0)
            run.save(1)
    assert caplog.text.count("run.remember") == 1


def test_a_stream_is_trained_on_and_published(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_OUTPUTS", str(tmp_path))
        with train.start() as run:
            model = nn.Linear(2, 1)
            model, _ = run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for x in run.stream((torch.ones(3, 2) for _ in range(5)), every=2):
                run.step(model, nn.functional.mse_loss, x, x[:, :1])
            assert (run.tally.step, run.tally.samples) == (5, 15)
        found = published(tmp_path / "published")
        assert found and (found[0].version, found[0].step) == (3, 5)
        assert torch.equal(found[1]["weight"], model.weight)
