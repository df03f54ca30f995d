"""A space moves to another number of servers with its parameters and optimizer state, and goes on as if it had not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.train.errors import BadCheckpoint
from shoal.train.ps.orders import Apply, Contribution, Hold
from shoal.train.ps.shard import Dump, Shard
from tests.train.ps.shards import Fleet, tensors


def adam(params: list[Tensor]) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": params[:2], "lr": 0.1}, {"params": params[2:], "amsgrad": True}]
    return torch.optim.Adam(groups)


def travelled(dumps: list[Dump]) -> list[Dump]:
    """As a file would bring them back."""
    return [
        Dump(json.loads(json.dumps(one.meta)), {name: flat.clone() for name, flat in one.tensors.items()})
        for one in dumps
    ]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (2, 5), (4, 3)])
def test_training_goes_on_bit_for_bit_on_another_number_of_servers(before: int, after: int, tmp_path: Path) -> None:
    params = tensors(1)
    old = Fleet.of(tmp_path, params, adam(params), before)
    for step in range(3):
        old.push(tensors(10 + step))
    (tmp_path / "new").mkdir()
    new = Fleet.of(tmp_path / "new", params, adam(params), after)
    for shard in new.shards:
        shard.load(travelled([one.dump() for one in old.shards]))
    assert [shard.version for shard in new.shards] == [3] * after
    for step in range(3, 6):
        old.push(tensors(10 + step))
        new.push(tensors(10 + step))
    assert all(torch.equal(one, other) for one, other in zip(old.params(), new.params(), strict=True))


def test_its_own_dump_brings_workers_rates_and_what_is_held_back(tmp_path: Path) -> None:
    params = tensors(1)
    fleet = Fleet.of(tmp_path, params, adam(params))
    fleet.push(tensors(10))
    (shard,) = fleet.shards
    shard.remember({0: 1, 4: 1})
    shard.retune({"0": {"lr": 0.5}}, clock=1)
    shard.obey(Hold(Contribution(0, 2, 0.5, clock=2)), {0: torch.ones(shard.part.count)})
    (dump,) = travelled([shard.dump()])
    fresh = Shard.create(tmp_path / "fresh", shard.part, shard.applier, fleet.shards[0].recipe)
    fresh.load([dump], memory=True)
    assert fresh.resume() == shard.resume() and fresh.recipe == shard.recipe
    order = Apply((Contribution(4, 1),), 1.5, 0.75, held=1)
    for one in (shard, fresh):
        one.obey(order, {4: torch.ones(shard.part.count)})
    assert torch.equal(shard.params, fresh.params)
    assert not fresh.retune({"0": {"lr": 0.7}}, clock=0)


def test_without_memory_no_worker_of_before_is_known(tmp_path: Path) -> None:
    params = tensors(1)
    fleet = Fleet.of(tmp_path, params, adam(params))
    fleet.push(tensors(10))
    fresh = Shard.create(tmp_path / "fresh", fleet.shards[0].part, "step", fleet.shards[0].recipe)
    fresh.load(travelled([fleet.shards[0].dump()]))
    assert fresh.initialised and fresh.resume().seqs == {} and fresh.resume().clocks == {} and fresh.version == 1


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    params = tensors(1)
    fleet = Fleet.of(tmp_path, params, adam(params), 2)
    shard = fleet.shards[0]
    dumps = [one.dump() for one in fleet.shards]
    with pytest.raises(BadCheckpoint, match=r"servers \[1\] are missing"):
        shard.load(dumps[:1])
    with pytest.raises(BadCheckpoint, match="no server's part"):
        shard.load([])
    with pytest.raises(BadCheckpoint, match="part of server 1, not 0"):
        shard.load(dumps[1:], memory=True)
    (tmp_path / "other").mkdir()
    other = tensors(1, sizes=(7, 133, 999, 13, 2003))
    with pytest.raises(BadCheckpoint, match=r"another model.*p2"):
        Fleet.of(tmp_path / "other", other, adam(other)).shards[0].load(dumps)
    sgd = Fleet.of(tmp_path / "other", params, torch.optim.SGD(params, lr=0.1))
    with pytest.raises(BadCheckpoint, match="trained with Adam, this run with SGD"):
        sgd.shards[0].load([one.dump() for one in Fleet.of(tmp_path, params, torch.optim.Adam(params)).shards])
    with pytest.raises(BadCheckpoint, match="format 99"):
        shard.load([Dump({**dumps[0].meta, "format": 99}, {}), *dumps[1:]])
