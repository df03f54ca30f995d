"""Strategies that must do the same, do the same: to the bit, with numbers that have few binary digits.

Each row of a table is one way to train; all rows of a table must end with the same weights. A strategy that is built
later adds its row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from shoal.train.flat import Flat
from shoal.train.gossip.replica import Replica
from shoal.train.group.threads import ThreadGroup
from shoal.train.simulate.gossip import synchronous
from shoal.train.simulate.pace import steady, wavering
from shoal.train.simulate.server import simulate
from shoal.train.strategies import SYNCHRONISERS
from shoal.train.topology import COMPLETE, Topology
from tests.train.ranks import lone, run_ranks, setting, step

WORKERS, STEPS, RATE = 2, 4, 0.5
START = (8.0, -4.0, 12.0, 0.0)

EVERY = "local-sgd:every=1"

Row = Callable[[], Tensor]


def gradient(weights: Tensor, rank: int, number: int) -> Tensor:
    """Every worker and every batch draws the weights to another point, with another force."""
    return force(rank) * (weights - goal(rank, number))


def force(rank: int) -> float:
    return 1.0 + 2 * rank


def goal(rank: int, number: int) -> Tensor:
    return torch.tensor([4.0 * rank, 2.0 * number, -2.0, 6.0 - rank])


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(START))

    def forward(self, rank: int, number: int) -> Tensor:
        """What `gradient` is the gradient of."""
        return (self.weights - goal(rank, number)).square().sum() * (force(rank) / 2)


def single() -> Tensor:
    """One process with the batches of all."""
    model = Point()
    optimizer = SGD(model.parameters(), lr=RATE)
    for number in range(STEPS):
        every = [gradient(model.weights.detach(), rank, number) for rank in range(WORKERS)]
        model.weights.grad = torch.stack(every).sum(dim=0) / WORKERS
        optimizer.step()
    return model.weights.detach()


def in_group(strategy: str, epoch: int = 0) -> Row:
    """A strategy over a group, a thread for each worker; all must end alike."""

    def row() -> Tensor:
        groups = ThreadGroup.make(WORKERS, patience=20.0)

        def work(rank: int) -> Tensor:
            model = Point()
            optimizer = SGD(model.parameters(), lr=RATE)
            name = strategy.partition(":")[0]
            sync: Any = SYNCHRONISERS.load(name)(setting(strategy, lone(WORKERS, rank), groups[rank], lambda: epoch))
            called = sync.attach(model, [optimizer])
            for number in range(STEPS):
                optimizer.zero_grad()
                called(rank, number).backward()
                step(sync, optimizer)
            sync.finish()
            return model.weights.detach()

        first, *others = run_ranks(WORKERS, work)
        assert all(torch.equal(first, other) for other in others)
        return first

    return row


class _Trainee:
    def __init__(self, rank: int) -> None:
        self.tensors = [torch.tensor(START)]
        self._rank, self._number = rank, 0

    def train(self) -> None:
        self.tensors[0].sub_(RATE * gradient(self.tensors[0], self._rank, self._number))
        self._number += 1


def decentralised() -> Tensor:
    """D-PSGD with weights 1/n. The mean moves as one process does; the replicas differ by their last gradients, which
    one more mixing evens out."""
    trainees = [_Trainee(rank) for rank in range(WORKERS)]
    values = torch.tensor(START)
    for number in range(STEPS):
        for trainee in trainees:  # equal starts in every step, as the lattice says
            trainee.tensors[0].copy_(values)
            trainee._number = number
        synchronous(trainees, Topology(COMPLETE), 1)
        values = torch.stack([trainee.tensors[0] for trainee in trainees]).sum(dim=0) / WORKERS
    return values


def push_sum() -> Tensor:
    """SGP in step over the complete graph: shares of one half, weights that stay one."""
    models = [torch.tensor(START) for _ in range(WORKERS)]
    replicas = [Replica(Flat([model])) for model in models]
    for number in range(STEPS):
        for rank, (model, replica) in enumerate(zip(models, replicas, strict=True)):
            model.sub_(RATE * gradient(model, rank, number))
            replica.step()
        shares = []
        for replica in replicas:
            share = replica.layout.empty()
            shares.append((share, replica.give(0.5, share)))
        for replica, (share, weight) in zip(replicas, reversed(shares), strict=True):
            replica.receive(share, weight)
        for replica in replicas:
            assert replica.weight == 1.0
            replica.step()
    assert torch.equal(models[0], models[1])
    return models[0]


def on_server(strategy: str, rate: float = RATE, pushes: int = STEPS * WORKERS) -> Row:
    """A parameter server's rule and shard under a virtual clock."""

    def row() -> Tensor:
        trace = simulate(
            strategy, workers=WORKERS, start=torch.tensor(START), gradient=gradient, pushes=pushes,
            optimizer=lambda tensors: SGD(tensors, lr=rate), seconds=wavering(), seed=3,
        )  # fmt: skip
        return trace.params

    return row


HARDSYNC: dict[str, Row] = {
    "one process with the whole batch": single,
    "allreduce": in_group("allreduce"),
    "allreduce, topk with ratio 1": in_group("allreduce:compress=topk,ratio=1"),
    "local SGD, every step": in_group(EVERY),
    "DiLoCo, every step, outer rate 1, no momentum": in_group(f"{EVERY},outer=nesterov,outer_lr=1,outer_momentum=0"),
    "SlowMo, every step, alpha 1, beta (next to) nothing": in_group(f"{EVERY},slowmo=1e-30,slowmo_lr=1"),
    "streaming, one fragment, no delay, no mix": in_group(f"{EVERY},fragments=1,delay=0,mix=0"),
    "post-local SGD before its epoch": in_group("local-sgd:every=3,from_epoch=1", epoch=0),
    "D-PSGD, weights 1/n, equal starts": decentralised,
    "SGP, doubly stochastic": push_sum,
    "ps-sync": on_server("ps-sync"),
    "ps-softsync of all, with nobody faster": on_server("ps-softsync:c=2,distinct=true,late=drop"),
    "SSP with staleness 0, rate over n": on_server("ps-ssp:staleness=0", RATE / WORKERS),
}  # fmt: skip


@pytest.mark.parametrize("name", HARDSYNC)
def test_hardsync(name: str) -> None:
    assert torch.equal(HARDSYNC[name](), single())


DOWNPOUR: dict[str, Row] = {
    "ps-async": on_server("ps-async", RATE / 8),
    "softsync with n = workers": on_server("ps-softsync:n=2", RATE / 8),
    "softsync of one": on_server("ps-softsync:c=1", RATE / 8),
    "SSP without a bound": on_server("ps-ssp:staleness=1000000", RATE / 8),
}


@pytest.mark.parametrize("name", DOWNPOUR)
def test_downpour(name: str) -> None:
    """The same schedule, the same weights."""
    assert torch.equal(DOWNPOUR[name](), DOWNPOUR["ps-async"]())


def test_staleness_that_never_exceeds_one_scales_nothing() -> None:
    def run(strategy: str) -> Tensor:
        return simulate(
            strategy, workers=2, start=torch.tensor(START), gradient=gradient, pushes=8,
            optimizer=lambda tensors: SGD(tensors, lr=RATE / 8), seconds=steady(),
        ).params  # fmt: skip

    assert torch.equal(run("ps-async"), run("ps-async:scale=inverse"))


@pytest.mark.parametrize("every", [1, 2, 3])
def test_topk_with_ratio_one_changes_no_round(every: int) -> None:
    """`local-sgd` has no ratio of its own; its reducer with ratio 1 is that of no compression."""
    from shoal.train import compress

    made = compress.reducer
    plain = in_group(f"local-sgd:every={every}")()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compress, "reducer", lambda options: made({**options, "compress": "topk", "ratio": 1.0}))
        squeezed = in_group(f"local-sgd:every={every}")()
    assert torch.equal(plain, squeezed)
