"""EASGD: an exchange conserves x + centre, shrinks the gap by 1 - 2 alpha, and at the end all have the centre."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from shoal.errors import BadSpec
from shoal.strategy import parse
from tests.train.sync.central import Site, Worker, linear, same, site, together, weights, whole
from tests.train.sync.test_ps_async import Line

RATE = 2.0**-2


def centre(here: Site) -> Tensor:
    """What all servers hold, in the order of the parameters (there is one)."""
    found = torch.empty(300)
    for host in here.running.values():
        served = host[1].spaces()["0.0"]
        for piece in served.part.pieces:
            at = piece.offset - served.part.offset
            found[piece.begin : piece.begin + piece.count] = served.shard.params[at : at + piece.count]
    return found


def step(model: Line, optimizer: torch.optim.Optimizer, gradient: Tensor) -> None:
    model.w.grad = gradient
    optimizer.step()


def begin(here: Site, workers: int) -> tuple[list[Worker], list[Line], list[torch.optim.Optimizer]]:
    made = [here.worker(rank) for rank in range(workers)]
    models = [Line() for _ in range(workers)]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(one.parameters(), lr=RATE) for one in models]
    together(workers, lambda rank: made[rank].wrap(models[rank], optimizers[rank]) and None)
    return made, models, optimizers


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0])
def test_an_exchange_conserves_the_sum_and_shrinks_the_gap(alpha: float, far: bool, tmp_path: Path) -> None:
    with site(tmp_path, f"easgd:every=1,alpha={alpha}", 2, servers=2, far=far) as here:
        workers, models, optimizers = begin(here, 2)
        for number in range(3):
            before, start = centre(here), models[0].w.detach().clone()
            gradient = whole(300, seed=number) * 16
            step(models[0], optimizers[0], gradient)
            moved = start - RATE * gradient
            after = models[0].w.detach()
            assert torch.equal(after + centre(here), moved + before)
            assert torch.equal(after - centre(here), (moved - before) * (1 - 2 * alpha))
        for one in workers:
            one.finish()


def test_workers_train_alone_between_exchanges(tmp_path: Path) -> None:
    with site(tmp_path, "easgd:every=3,alpha=0.5", 2) as here:
        workers, models, optimizers = begin(here, 2)
        for _ in range(2):
            step(models[0], optimizers[0], torch.ones(300))
        assert torch.equal(models[0].w.detach(), torch.full((300,), -2 * RATE))
        assert not centre(here).any()
        step(models[0], optimizers[0], torch.ones(300))
        assert torch.equal(models[0].w.detach(), torch.full((300,), -3 * RATE / 2))
        assert torch.equal(centre(here), torch.full((300,), -3 * RATE / 2))
        for one in workers:
            one.finish()


def test_at_the_end_everybody_has_the_centre(tmp_path: Path) -> None:
    with site(tmp_path, "easgd:every=2,alpha=0.5", 2) as here:
        workers, models, optimizers = begin(here, 2)
        for rank in range(2):
            for number in range(3):
                step(models[rank], optimizers[rank], whole(300, seed=10 * rank + number))
        workers[0].finish()
        workers[1].finish()
        assert torch.equal(models[1].w.detach(), centre(here))


def test_many_exchanges_at_once_lose_nothing(tmp_path: Path) -> None:
    """The sum of all workers' parameters and the centre changes by local steps only."""
    with site(tmp_path, "easgd:every=1,alpha=0.5", 4, servers=2) as here:
        workers, models, optimizers = begin(here, 4)

        def act(rank: int) -> Tensor:
            total = torch.zeros(300)
            for number in range(5):
                gradient = whole(300, seed=10 * rank + number) * 1024
                step(models[rank], optimizers[rank], gradient)
                total += gradient
            return total

        totals = together(4, act)
        found = sum((one.w.detach() for one in models), centre(here))
        assert torch.equal(found, -RATE * sum(totals, torch.zeros(300)))
        for one in workers:
            one.finish()


def test_any_optimizer_will_do_and_it_stays_on_its_worker(tmp_path: Path) -> None:
    with site(tmp_path, "easgd", 1) as here:
        worker, model = here.worker(0), linear()
        optimizer = torch.optim.LBFGS(model.parameters())
        worker.wrap(model, optimizer)
        assert worker.sync.needs_gradient is False
        assert worker.sync.facts()["optimizer"] == "LBFGS on the workers"
        assert worker.sync.facts()["learning_rate"] == "each worker's own; the elastic force is 0.9 every 4 steps"
        worker.finish()
    assert same(weights(model), weights(linear()))


def test_compression_that_keeps_too_little_is_refused() -> None:
    with pytest.raises(BadSpec, match=r"none \| fp16 \| bf16"):
        parse("easgd:compress=topk")
