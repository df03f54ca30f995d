"""With one worker a server steps exactly as torch would: the same bits, for every class, on any number of servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.train.errors import BadOptimizer
from shoal.train.ps.recipe import ELEMENTWISE, Recipe
from tests.train.ps.shards import Fleet, tensors

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ELEMENTWISE),
    ("SGD", {"momentum": 0.9, "dampening": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "maximize": True}),
    ("SGD", {"momentum": 0.9, "foreach": True}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.01}),
    ("Adam", {"foreach": True}),
    ("AdamW", {"amsgrad": True}),
    ("Adagrad", {"initial_accumulator_value": 0.5, "lr_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
]


def optimizer_of(name: str, options: dict[str, Any], params: list[Tensor]) -> Optimizer:
    """Two groups with rates of their own, crosswise."""
    groups = [{"params": params[0::2], "lr": 0.05}, {"params": params[1::2], "lr": 0.01}]
    made: Optimizer = getattr(torch.optim, name)(groups, **options)
    return made


def both(
    folder: Path, name: str, options: dict[str, Any], servers: int, dtype: torch.dtype
) -> tuple[list[Tensor], ...]:
    """The parameters after eight steps with a scheduler: torch's own, and the servers', which are reopened midway."""
    params = [one.requires_grad_() for one in tensors(1, dtype)]
    optimizer = optimizer_of(name, options, params)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    fleet = Fleet.of(folder, params, optimizer, servers)
    sent = Recipe.of(optimizer)
    assert sent is not None
    for step in range(8):
        gradients = tensors(100 + step, dtype)
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        now = Recipe.of(optimizer)
        assert now is not None
        for shard in fleet.shards:
            shard.retune(now.changes(sent), step)
        sent = now
        fleet.push(gradients)
        optimizer.step()
        scheduler.step()
        if step == 3:
            fleet.reopen()
    return [one.detach() for one in params], fleet.params()


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_the_server_steps_as_torch_does(name: str, options: dict[str, Any], servers: int, tmp_path: Path) -> None:
    own, served = both(tmp_path, name, options, servers, torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(own, served, strict=True))


@pytest.mark.parametrize("name", ["SGD", "Adam", "ASGD"])
def test_in_doubles_too(name: str, tmp_path: Path) -> None:
    own, served = both(tmp_path, name, {}, 2, torch.float64)
    assert all(torch.equal(one, other) for one, other in zip(own, served, strict=True))


def test_fused_is_honoured_and_close(tmp_path: Path) -> None:
    own, served = both(tmp_path, "Adam", {"fused": True}, 1, torch.float32)
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-7) for one, other in zip(own, served, strict=True))


def test_the_schedule_of_the_furthest_counts(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.zeros(4)], lr=1.0)
    (shard,) = Fleet.of(tmp_path, tensors(0), optimizer).shards
    assert shard.retune({"0": {"lr": 0.5}}, clock=10)
    assert not shard.retune({"0": {"lr": 0.9}}, clock=9), "a slow worker does not bring the old rate back"
    assert shard.recipe is not None and shard.recipe.groups[0]["lr"] == 0.5
    assert shard.retune({"0": {"lr": 0.25}}, clock=10)
    again = type(shard).open(shard.path)
    assert again.recipe is not None and again.recipe.groups[0]["lr"] == 0.25
    assert not again.retune({"0": {"lr": 0.9}}, clock=9)


def test_a_change_that_needs_more_state_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    (shard,) = Fleet.of(tmp_path, tensors(0), torch.optim.SGD([torch.zeros(4)], lr=1.0)).shards
    with pytest.raises(BadOptimizer, match="keep more than there is room for"):
        shard.retune({"0": {"momentum": 0.9}}, clock=1)
    assert shard.recipe is not None and shard.recipe.groups[0]["momentum"] == 0
