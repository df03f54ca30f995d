"""Averaged weights: torch's AveragedModel, bit for bit, without a second model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from shoal.train.checkpoint import Averages
from shoal.train.errors import BadCheckpoint


def network() -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2).double())
    model[0].bias.requires_grad_(False)
    return model


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for one in model.parameters():
            one.add_(torch.rand_like(one))
        model[1].running_mean.add_(1.0)  # type: ignore[index, union-attr, operator]


def theirs(kind: str, model: nn.Module, decay: float) -> AveragedModel:
    if kind == "ema":
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
    return AveragedModel(model)


def equal(mine: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(mine) == list(other) and all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize("kind", ["ema", "swa"])
@pytest.mark.parametrize("decay", [0.9, 0.999])
def test_the_numbers_are_torchs(kind: str, decay: float) -> None:
    model = network()
    mine, other = Averages(model, kind, decay), theirs(kind, model, decay)
    for count in range(7):
        change(model)
        mine.update()
        other.update_parameters(model)
        assert mine.count == count + 1
        assert equal(mine.weights(), other.module.state_dict())


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_they_go_on_from_a_checkpoint(kind: str) -> None:
    model = network()
    mine = Averages(model, kind, 0.9)
    for _ in range(3):
        change(model)
        mine.update()
    again = Averages(model, kind, 0.9)
    again.load(mine.weights(), mine.state())
    change(model)
    mine.update()
    again.update()
    assert equal(again.weights(), mine.weights())


def test_weights_are_a_copy_and_fit_the_model() -> None:
    model = network()
    mine = Averages(model, "ema", 0.5)
    mine.update()
    kept = mine.weights()
    change(model)
    mine.update()
    assert not torch.equal(kept["0.weight"], mine.weights()["0.weight"])
    model.load_state_dict(kept)


def test_tied_weights_are_averaged_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    mine = Averages(model, "ema", 0.5)
    mine.update()
    with torch.no_grad():
        model[0].weight.zero_()
    mine.update()
    weights = mine.weights()
    assert torch.equal(weights["0.weight"], weights["1.weight"])


def test_the_whole_of_a_cut_model_is_asked_of_its_partition() -> None:
    class Whole:
        def model_state(self, model: nn.Module) -> dict[str, torch.Tensor]:
            return {name: one.detach() for name, one in model.state_dict().items()}

    model = nn.Linear(2, 1)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    mine = Averages(model, "ema", 0.0, partition=Whole())  # type: ignore[arg-type]
    mine.update()
    with torch.no_grad():
        model.weight.add_(1)
    now = model.weight.detach().clone()
    assert equal(mine.weights(), before)
    assert torch.equal(model.weight, now)


def test_averages_of_another_kind_are_refused() -> None:
    mine = Averages(network(), "swa")
    with pytest.raises(BadCheckpoint, match="average=ema"):
        mine.load({}, {"kind": "ema", "count": 1})
    with pytest.raises(ValueError, match="'mean'"):
        Averages(network(), "mean")
