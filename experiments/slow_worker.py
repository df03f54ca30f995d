"""One slow worker: all-reduce is as slow as it is, asynchronous servers and gossip hardly notice.

Lian, Zhang, Zhang, Liu: Asynchronous Decentralized Parallel SGD (ICML 2018): faster than all-reduce by as much as the
slowest worker is slower. When one of n is k times slower, all-reduce must take k times as long, and nobody can do
better than n / (n - 1 + 1/k) times: the slow one still does its share.

Here: the real strategies under a virtual clock, training a small net on digits; an epoch is so many samples, whoever
computes them. All-reduce is `local-sgd:every=1`, which with plain SGD is the same arithmetic at the same times.
`--real` also runs four real processes through the library, whose compute is sleep.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from digits import LEARN, error, fill, loss, net
from results import Cell, Result, Table, leave, options
from sleepers import SLOWER as REAL_SLOWER
from sleepers import STRATEGIES as REAL
from sleepers import rates
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD

from shoal._lib.chart import Panel
from shoal.train.simulate import gossip, local, server
from shoal.train.simulate.pace import Seconds, slowed, steady, wavering
from shoal.train.topology import EXPONENTIAL, Topology

BATCH, RATE = 8, 0.2
SLOWER = (1.0, 2.0, 10.0)
MESSAGE = 0.05  # virtual seconds; a step takes one
SPREAD = 0.1
Slowdown = dict[str, dict[str, list[float]]]  # strategy → workers → time of an epoch against nobody slow


@dataclass
class Outcome:
    """One training of so many virtual seconds: steps of all workers, and the test error along the way."""

    steps: int = 0
    seconds: float = 0.0
    errors: list[tuple[float, float]] = field(default_factory=list)

    @property
    def epoch(self) -> float:
        """Virtual seconds for as many samples as there are."""
        return LEARN / BATCH * self.seconds / self.steps

    def error_at(self, seconds: float) -> float:
        return [error for at, error in self.errors if at <= seconds][-1]


def pace(by: float) -> Seconds:
    """Everybody about a second; the first worker slower."""
    return slowed(by, [0], wavering(1.0, SPREAD))


def in_step(strategy: str) -> Callable[[int, float, float], Outcome]:
    """Workers that meet. How many steps fit into the time is known only afterwards, so they do enough for nobody slow;
    what came too late is cut off."""

    def train(workers: int, by: float, seconds: float) -> Outcome:
        errors: list[float] = []
        models = [net() for _ in range(workers)]  # here: threads would draw their starts from one generator

        def learner(rank: int) -> local.Learner:
            model = models[rank]
            optimizer = SGD(model.parameters(), lr=RATE)

            def gradients(step: int) -> float:
                if rank == 0:
                    errors.append(error(model))
                return _backward(model, optimizer, rank, step)

            return model, optimizer, gradients

        most = int(seconds / by * 1.2) + 1
        trace = local.simulate(strategy, learner, workers, most, compute=pace(by), exchange=MESSAGE)
        done = [at for at in map(max, zip(*trace.times, strict=True)) if at <= seconds]  # steps that all have done
        begun = [0.0, *trace.times[0]]
        curve = [(at, one) for at, one in zip(begun, errors, strict=False) if at <= seconds]
        return Outcome(len(done) * workers, done[-1], curve)

    return train


def served(strategy: str) -> Callable[[int, float, float], Outcome]:
    """Workers with a parameter server. A push counts as one of `workers` parts of a step."""

    def train(workers: int, by: float, seconds: float) -> Outcome:
        model, outcome = net(), Outcome(seconds=seconds)
        start, gradient = server.gradient_of(model, lambda model, rank, step: loss(model, rank, step, BATCH))

        def sgd(tensors: list[Tensor]) -> torch.optim.Optimizer:
            return SGD(tensors, lr=RATE / workers)

        compute = _with_message(pace(by))
        with server.simulation(strategy, workers, start, gradient, sgd, compute, 0, (), 0.0) as running:
            while running.now <= seconds and running.advance():
                if running.now >= len(outcome.errors):
                    outcome.errors.append((running.now, error(fill(model, running.shard.params[: start.numel()]))))
            outcome.steps = len(running.trace.pushes) - 1
        return outcome

    return train


class Trainee:
    """A gossiping worker's model."""

    def __init__(self, rank: int) -> None:
        self.rank, self.model, self.step = rank, net(), 0
        self.tensors = list(self.model.parameters())
        self._optimizer = SGD(self.tensors, lr=RATE)

    def train(self) -> None:
        _backward(self.model, self._optimizer, self.rank, self.step)
        self._optimizer.step()
        self.step += 1


def gossiping(workers: int, by: float, seconds: float) -> Outcome:
    trainees, model, errors = [Trainee(rank) for rank in range(workers)], net(), []
    running = gossip.Simulation(trainees, Topology(EXPONENTIAL), compute=pace(by), latency=steady(MESSAGE / 2))
    running.run(10 * int(seconds), until=0.0)
    for now in range(int(seconds) + 1):
        running.clock.run(until=now)
        middle = torch.stack([parameters_to_vector(one.tensors).detach() for one in trainees]).mean(dim=0)
        errors.append((float(now), error(fill(model, middle))))
    return Outcome(sum(one.step for one in trainees), float(int(seconds)), errors)


STRATEGIES: dict[str, Callable[[int, float, float], Outcome]] = {
    "allreduce": in_step("local-sgd:every=1"),
    "local-sgd:every=8": in_step("local-sgd:every=8"),
    "ps-ssp:staleness=4": served("ps-ssp:staleness=4"),
    "ps-async": served("ps-async"),
    "gossip": gossiping,
}
FREE = ("ps-async", "gossip")  # nobody waits for anybody


def run(given: argparse.Namespace) -> Result:
    sizes, seconds = ((4,), 100.0) if given.quick else ((4, 16), 160.0)
    found = {
        (name, workers, by): train(workers, by, seconds)
        for name, train in STRATEGIES.items()
        for workers in sizes
        for by in SLOWER
    }
    slowdown = {
        name: {str(workers): [found[name, workers, by].epoch / found[name, workers, 1.0].epoch for by in SLOWER]
               for workers in sizes}
        for name in STRATEGIES
    }  # fmt: skip
    real = rates(0.2 if given.quick else 2.0) if given.real else {}
    tables = [times(sizes, found, slowdown), errors(sizes[-1], seconds, found)]
    return Result(
        "slow_worker",
        f"one slow worker of {sizes[-1]}, digits",
        tables + ([processes(real)] if real else []),
        panels(sizes[-1], found, slowdown),
        {"batch": BATCH, "rate": RATE, "message": MESSAGE, "spread": SPREAD, "seconds": seconds},
        {"slowdown": slowdown, "real": real},
    )


def times(sizes: tuple[int, ...], found: dict[tuple[str, int, float], Outcome], slowdown: Slowdown) -> Table:
    rows: list[list[Cell]] = []
    for workers in sizes:
        for name in STRATEGIES:
            seconds = found[name, workers, 1.0].epoch
            limit = workers / (workers - 1 + 1 / SLOWER[-1]) if name in FREE else SLOWER[-1]
            took = slowdown[name][str(workers)][1:]
            rows.append([workers, name, seconds, *(f"{one:.2f} ×" for one in [*took, limit])])
    head = ["workers", "strategy", "epoch, nobody slow (virtual s)", *(f"one {by:g} × slower" for by in SLOWER[1:])]
    return Table("Time of an epoch, against nobody slow", [*head, f"expected at {SLOWER[-1]:g} ×"], rows)


def errors(workers: int, seconds: float, found: dict[tuple[str, int, float], Outcome]) -> Table:
    rows: list[list[Cell]] = [
        [name, *(found[name, workers, by].error_at(part * seconds) for part in (0.5, 1.0) for by in SLOWER)]
        for name in STRATEGIES
    ]
    head = [f"{part * seconds:g} s, {_words(by)}" for part in (0.5, 1.0) for by in SLOWER]
    return Table(f"Test error (%) of {workers} workers after so many virtual seconds", ["strategy", *head], rows)


def processes(real: dict[str, list[float]]) -> Table:
    rows: list[list[Cell]] = [
        [name, *found, *(f"{rate / found[0]:.2f} ×" for rate in found[1:])] for name, found in real.items()
    ]
    head = [f"steps/s, {_words(by)}" for by in REAL_SLOWER] + [f"of nobody slow, {by:g} ×" for by in REAL_SLOWER[1:]]
    return Table("Four real processes that sleep 20 ms a step", ["strategy", *head], rows)


def panels(workers: int, found: dict[tuple[str, int, float], Outcome], slowdown: Slowdown) -> list[Panel]:
    slower = {name: list(zip(SLOWER, of[str(workers)], strict=True)) for name, of in slowdown.items()}

    def curves(by: float) -> Panel:
        lines = {name: found[name, workers, by].errors for name in STRATEGIES}
        return Panel(f"error, {_words(by)}", "virtual seconds", "test error %", lines)

    first = Panel("time of an epoch", "how much slower one worker is", "against nobody slow", slower)
    return [first, curves(1.0), curves(SLOWER[-1])]


def _words(by: float) -> str:
    return "nobody slow" if by == 1 else f"one {by:g} × slower"


def _with_message(compute: Seconds) -> Seconds:
    return lambda worker, step, chance: compute(worker, step, chance) + MESSAGE


def _backward(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> float:
    optimizer.zero_grad()
    value = loss(model, rank, step, BATCH)
    value.backward()
    return float(value.detach())


if __name__ == "__main__":
    given = options(__doc__, real=f"also with real processes: {', '.join(REAL)}")
    leave(given, run(given))
