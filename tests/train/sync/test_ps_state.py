"""What a checkpoint holds of the servers: training goes on bit for bit, also with another number of servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.train.checkpoint import tree
from shoal.train.errors import BadCheckpoint
from tests.train.sync.central import Site, batch, linear, loss_of, same, site, together, weights
from tests.train.sync.test_ps_sync import OPTIMIZERS, Own

SIZE = (20, 30)


def steps(here: Site, first: int, last: int, saved: Any = None, name: str = "adam") -> tuple[list[Tensor], Any]:
    """Trains from step to step on two workers; the weights, and the state of both."""

    def act(rank: int) -> tuple[list[Tensor], dict[str, Tensor], Any]:
        worker, model = here.worker(rank), linear(*SIZE, seed=1 + first)
        optimizer = Own(model.parameters(), lr=2.0**-6) if name == "own" else OPTIMIZERS[name](model)
        worker.wrap(model, optimizer)
        if saved:
            model.load_state_dict(saved[rank][0])
            worker.sync.load(saved[rank][1])
        for step in range(first, last):
            optimizer.zero_grad()
            loss_of(model, *batch(rank, step, inputs=SIZE[0], outputs=SIZE[1])).backward()
            optimizer.step()
        state = kept(worker.sync.state())
        worker.finish()
        return weights(model), {key: value.clone() for key, value in model.state_dict().items()}, state

    results = together(2, act)
    assert same(results[0][0], results[1][0])
    return results[0][0], [(model, state) for _, model, state in results]


def kept(state: Mapping[str, Any]) -> Any:
    """As a checkpoint keeps it: JSON and tensors."""
    tensors: dict[str, Tensor] = {}
    packed = tree.pack(state, "sync", tensors)
    return tree.unpack(packed, {name: one.clone() for name, one in tensors.items()})


@pytest.mark.parametrize("servers", [(1, 1), (2, 3), (3, 1)])
@pytest.mark.parametrize("name", ["adam", "own"])
def test_training_goes_on_where_it_was(servers: tuple[int, int], name: str, tmp_path: Path) -> None:
    with site(tmp_path / "whole", "ps-sync", 2, servers=servers[0]) as here:
        expected, _ = steps(here, 0, 4, name=name)
    with site(tmp_path / "first", "ps-sync", 2, servers=servers[0]) as here:
        _, saved = steps(here, 0, 2, name=name)
    with site(tmp_path / "second", "ps-sync", 2, servers=servers[1]) as here:
        result, _ = steps(here, 2, 4, saved, name)
    assert same(result, expected)


@pytest.mark.parametrize("strategy", ["ps-async:push=3", "ps-async:push=3,fetch=2", "easgd:every=3,alpha=0.25"])
def test_what_was_added_up_and_not_pushed_yet_is_pushed_after_a_restart(strategy: str, tmp_path: Path) -> None:
    def alone(here: Site, first: int, last: int, saved: Any = None) -> tuple[list[Tensor], Any]:
        worker, model = here.worker(0), linear(seed=1 + first)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-6)
        worker.wrap(model, optimizer)
        if saved:
            model.load_state_dict(saved[0])
            worker.sync.load(saved[1])
        for step in range(first, last):
            optimizer.zero_grad()
            loss_of(model, *batch(0, step)).backward()
            optimizer.step()
        values = {key: value.clone() for key, value in model.state_dict().items()}
        state = kept(worker.sync.state())
        worker.finish()
        return weights(model), (values, state)

    with site(tmp_path / "whole", strategy, 1) as here:
        expected, _ = alone(here, 0, 9)
    with site(tmp_path / "first", strategy, 1) as here:
        _, saved = alone(here, 0, 4)
    with site(tmp_path / "second", strategy, 1) as here:
        result, _ = alone(here, 4, 9, saved)
    assert same(result, expected)


def test_the_weights_of_another_strategys_checkpoint_are_taken(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async", 1) as here:
        worker, model = here.worker(0), linear()
        worker.wrap(model, torch.optim.Adam(model.parameters()))
        model.load_state_dict(linear(seed=9).state_dict())
        worker.sync.load({"outer": 1})
        assert same(weights(model), weights(linear(seed=9)))
        worker.finish()


def test_who_joins_a_training_under_way_takes_that(tmp_path: Path) -> None:
    with site(tmp_path / "old", "ps-async", 1) as here:
        worker, model = here.worker(0), linear(seed=3)
        worker.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
        state = worker.sync.state()
        worker.finish()
    with site(tmp_path / "new", "ps-async", 2) as here:
        models = [linear(seed=1), linear(seed=2)]
        workers = [here.worker(rank) for rank in range(2)]
        optimizer = torch.optim.SGD(models[0].parameters(), lr=1.0)
        workers[0].wrap(models[0], optimizer)
        for one in models[0].parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
        workers[1].wrap(models[1], torch.optim.SGD(models[1].parameters(), lr=1.0))
        models[1].load_state_dict(linear(seed=3).state_dict())
        workers[1].sync.load(state)
        assert same(weights(models[1]), weights(models[0]))
        for one in workers:
            one.finish()


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    with site(tmp_path / "one", "ps-async", 1) as here:
        worker, model = here.worker(0), linear()
        worker.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
        state = worker.sync.state()
        worker.finish()
    with site(tmp_path / "two", "ps-async", 1) as here:
        worker, other = here.worker(0), nn.Linear(2, 2)
        worker.wrap(other, torch.optim.SGD(other.parameters(), lr=1.0))
        with pytest.raises(BadCheckpoint, match="another model"):
            worker.sync.load(state)
        worker.finish()


def test_the_centre_of_easgd_is_kept(tmp_path: Path) -> None:
    with site(tmp_path / "one", "easgd:every=1,alpha=0.5", 1) as here:
        worker, model = here.worker(0), linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        worker.wrap(model, optimizer)
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        optimizer.step()
        own, state = {key: value.clone() for key, value in model.state_dict().items()}, kept(worker.sync.state())
        worker.finish()
        centre = weights(model)
    with site(tmp_path / "two", "easgd:every=1,alpha=0.5", 1) as here:
        worker, model = here.worker(0), linear(seed=7)
        worker.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
        model.load_state_dict(own)
        worker.sync.load(state)
        assert same(weights(model), list(own.values()))
        worker.finish()
    assert same(weights(model), centre)
