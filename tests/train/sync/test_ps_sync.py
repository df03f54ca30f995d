"""ps-sync equals one process with the batches of all workers, whatever optimizer, and keeps the script's meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train.errors import BadOptimizer
from shoal.train.ps.client import Portion
from tests.train.sync.central import Worker, batch, linear, loss_of, same, site, together, weights

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=2.0**-6),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=2.0**-6, momentum=0.5, nesterov=True),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=2.0**-4),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=2.0**-4, weight_decay=0.25),
}


def alone(workers: int, steps: int, make: Callable[[nn.Module], Optimizer]) -> list[Tensor]:
    """One process: the mean of the gradients of all batches, added up in the order of workers."""
    model = linear()
    optimizer = make(model)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(workers):
            loss_of(model, *batch(rank, step)).backward()
        for one in model.parameters():
            assert one.grad is not None
            one.grad.div_(workers)
        optimizer.step()
    return weights(model)


def train(worker: Worker, make: Callable[[nn.Module], Optimizer], steps: int, seed: int = 1) -> list[Tensor]:
    model = linear(seed=seed)
    optimizer = make(model)
    worker.wrap(model, optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(worker.world.rank, step)).backward()
        optimizer.step()
    worker.finish()
    return weights(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("workers", [2, 4])
def test_equals_one_process_with_all_batches_bit_for_bit(name: str, workers: int, tmp_path: Path) -> None:
    with site(tmp_path, "ps-sync", workers) as here:
        results = together(workers, lambda rank: train(here.worker(rank), OPTIMIZERS[name], 3))
    expected = alone(workers, 3, OPTIMIZERS[name])
    assert all(same(one, expected) for one in results)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("far", [False, True])
def test_the_number_of_servers_and_the_way_there_change_nothing(servers: int, far: bool, tmp_path: Path) -> None:
    with site(tmp_path, "ps-sync", 2, servers, far=far) as here:
        results = together(2, lambda rank: train(here.worker(rank), OPTIMIZERS["adam"], 3))
    expected = alone(2, 3, OPTIMIZERS["adam"])
    assert all(same(one, expected) for one in results)


def test_all_begin_with_the_values_of_the_first_worker(tmp_path: Path) -> None:
    with site(tmp_path, "ps-sync", 2) as here:
        results = together(2, lambda rank: train(here.worker(rank), OPTIMIZERS["sgd"], 2, seed=1 + 7 * rank))
    expected = alone(2, 2, OPTIMIZERS["sgd"])
    assert all(same(one, expected) for one in results)


class Own(torch.optim.SGD):
    """A class of the user's: it cannot run on a server."""


def test_an_optimizer_of_the_users_own_steps_on_every_worker_with_the_mean_gradient(tmp_path: Path) -> None:
    def make(model: nn.Module) -> Optimizer:
        return Own(model.parameters(), lr=2.0**-6, momentum=0.5)

    with site(tmp_path, "ps-sync", 2, servers=2) as here:
        results = together(2, lambda rank: train(here.worker(rank), make, 4, seed=1 + rank))
    expected = alone(2, 4, OPTIMIZERS["sgd"].__class__ and make)
    assert all(same(one, expected) for one in results)


def test_a_worker_that_steps_by_itself_cannot_join_a_training_under_way(tmp_path: Path) -> None:
    with site(tmp_path, "ps-sync", 1) as here:
        model, other = linear(), linear(seed=2)
        optimizer = Own(model.parameters(), lr=1.0)
        first, second = here.worker(0), here.worker(0)
        first.wrap(model, optimizer)
        loss_of(model, *batch(0, 0)).backward()
        optimizer.step()
        with pytest.raises(BadOptimizer, match="Own steps on the workers.* start all workers again"):
            second.wrap(other, Own(other.parameters(), lr=1.0))
        assert same(weights(other), weights(linear(seed=2))), "the mean gradient is not its weights"
        first.sync._end(Portion.abandon)


def test_the_workers_gradients_are_given_back_after_the_step(tmp_path: Path) -> None:
    def act(rank: int) -> bool:
        worker, model = here.worker(rank), linear()
        optimizer = OPTIMIZERS["sgd"](model)
        worker.wrap(model, optimizer)
        loss_of(model, *batch(rank, 0)).backward()
        before = [one.grad for one in model.parameters()]
        values = [one.clone() for one in before if one is not None]
        optimizer.step()
        worker.finish()
        after = [one.grad for one in model.parameters()]
        return all(mine is other for mine, other in zip(before, after, strict=True)) and same(
            values, [one for one in after if one is not None]
        )

    with site(tmp_path, "ps-sync", 2) as here:
        assert together(2, act) == [True, True]
