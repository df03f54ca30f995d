"""Optimizer state by the names of parameters, blocks gathered by themselves, and errors of the process group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shoal.train import process_group
from shoal.train.errors import BadCheckpoint, BadOptimizer, PeerLost, TrainError, WaitedTooLong
from shoal.train.partition import whole
from shoal.train.partition.copies import buckets
from shoal.train.partition.fsdp import blocks
from shoal.train.world import World
from tests.train.partition.models import Encoder, Gpt, Mlp, numbers


def made(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    every = list(model.parameters())
    groups: list[dict[str, Any]] = [{"params": every[:2], "lr": rate}, {"params": every[2:]}]
    return torch.optim.AdamW(groups)


def stepped(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = made(model, 0.5)
    x, y = numbers(4, 1)
    torch.autograd.backward(nn.functional.mse_loss(model(x), y))
    optimizer.step()
    return optimizer


def test_state_goes_by_name_and_back() -> None:
    one, two = Mlp(), Mlp()
    first, second = stepped(one), made(two, 0.1)
    state = whole.export([first], whole.names_of(one))
    assert state["optimizers"][0]["groups"][0]["params"] == ["0.weight", "0.bias"]
    whole.restore([second], whole.names_of(two), state)
    assert second.param_groups[0]["lr"] == 0.5 and second.param_groups[0]["betas"] == (0.9, 0.999)
    for old, new in zip(one.parameters(), two.parameters(), strict=True):
        assert first.state[old].keys() == second.state[new].keys()
        assert all(torch.equal(first.state[old][key], second.state[new][key]) for key in first.state[old])
        assert second.state[new]["exp_avg"].data_ptr() != first.state[old]["exp_avg"].data_ptr()


def test_parts_of_workers_make_one_state() -> None:
    model = Mlp()
    state = whole.export([stepped(model)], whole.names_of(model))["optimizers"][0]
    parts = [
        {"optimizers": [{**state, "groups": [{**g, "params": []} for g in state["groups"]], "state": some}]}
        for some in ({"0.weight": 1}, {"2.weight": 2})
    ]
    names = [[group["params"] for group in state["groups"]]]
    merged = whole.merge(parts, names)["optimizers"][0]
    assert merged["state"] == {"0.weight": 1, "2.weight": 2} and merged["groups"] == state["groups"]


def test_groups_stay_the_objects_that_schedulers_hold() -> None:
    model: Any = Mlp()
    optimizer = stepped(model)
    known, groups = whole.names_of(model), list(optimizer.param_groups)
    held = optimizer.state[model[0].weight]["exp_avg"].clone()
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    model[6].bias = nn.Parameter(model[6].bias.detach().to("meta"))
    whole.point([optimizer], known, model)
    assert all(one is two for one, two in zip(groups, optimizer.param_groups, strict=True))
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg"], held)
    assert len(optimizer.param_groups[1]["params"]) == 5 and len(optimizer.state) == 7


def test_a_checkpoint_of_other_optimizers_is_refused() -> None:
    model = Mlp()
    state = whole.export([stepped(model)], whole.names_of(model))
    with pytest.raises(BadCheckpoint, match="AdamW with 2 groups and the script has SGD with 1"):
        whole.restore([torch.optim.SGD(model.parameters(), lr=1)], whole.names_of(model), state)
    with pytest.raises(BadCheckpoint, match="1 optimizers and the script wraps 0"):
        whole.restore([], {}, state)


def test_an_optimizer_that_mixes_parameters_is_refused_by_name() -> None:
    with pytest.raises(BadOptimizer, match="LBFGS cannot run under fsdp"):
        whole.elementwise([torch.optim.LBFGS(Mlp().parameters())], "fsdp")


def test_layers_of_lists_are_gathered_by_themselves() -> None:
    model = Gpt()
    assert list(blocks(model, 0)) == list(model.blocks)
    assert list(blocks(model, 1e9)) == []
    mlp = Mlp()
    assert list(blocks(mlp, 600)) == [mlp[2], mlp[4]]
    encoder = Encoder()
    assert list(blocks(encoder, 0)) == list(encoder.encoder.layers)


def test_a_block_that_shares_a_weight_with_the_rest_stays_with_the_rest() -> None:
    model = Mlp()
    model[4].weight = model[2].weight
    assert list(blocks(model, 0)) == [model[0], model[6]]


def test_buckets_are_full_of_one_kind() -> None:
    some = [torch.zeros(10), torch.zeros(10), torch.zeros(10, dtype=torch.float64), torch.zeros(100)]
    assert [len(one) for one in buckets(some, 80)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("said", "kind"),
    [("Connection closed by peer [127.0.0.1]:1", PeerLost), ("Timed out waiting 1000ms for recv", WaitedTooLong)],
)
def test_an_error_of_the_group_says_what_was_waited_for_and_for_whom(said: str, kind: type[TrainError]) -> None:
    with pytest.raises(kind, match="step 3: one of worker-1, worker-2") as caught:
        with process_group.waiting("step 3", process_group.others(World(rank=0, size=3))):
            raise RuntimeError(said)
    assert caught.value.facts["who"] == ["worker-1", "worker-2"]


def test_another_error_passes() -> None:
    with pytest.raises(RuntimeError, match="shape"), process_group.waiting("x", []):
        raise RuntimeError("shape mismatch")


def test_without_a_place_to_meet_there_is_no_group() -> None:
    with pytest.raises(TrainError, match="MASTER_ADDR and MASTER_PORT are not set; start the script with shoal run"):
        process_group.join(World(rank=0, size=2))
