"""The further ahead workers may be, the less they wait; if they also read less often, a bound in between is best.

Ho et al.: More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server (NIPS 2013); Li et al.:
Scaling Distributed Machine Learning with the Parameter Server (OSDI 2014), where workers of a sparse logistic
regression were idle 50 % of the time at a bound of 0, 1.7 % at 16, and 8 was fastest.

Here: logistic regression whose workers now and then straggle, under a virtual clock, with the real rule and shard. Two
ways to read. *Fresh* is Shoal's: every iteration reads what the server has. *Cached* is that of the first paper: a
worker keeps what it has read, with its own changes added, as long as the bound allows; so staleness grows with it.
"""

from __future__ import annotations

import argparse
import random
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache, partial

import torch
from results import Cell, Result, Table, leave, mean, options
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from shoal._lib.chart import Panel
from shoal.train.simulate.pace import Seconds
from shoal.train.simulate.server import Gradient, Simulation, simulation

WORKERS, SAMPLES, FEATURES = 8, 4096, 40
RATE = 1.5  # of a push; near the largest at which a bound of 0 still converges (2 does not)
HIT, SLOWER, SPREAD = 0.05, 4.0, 0.2  # one iteration in twenty takes four times as long
TARGET = 1.001  # times the least loss
CAP = 300  # iterations of each worker; then we give up
WAYS = FRESH, CACHED = "fresh reads", "cached reads"


def straggling() -> Seconds:
    """A second, more or less, and now and then much more."""

    def seconds(worker: int, step: int, chance: random.Random) -> float:
        usual = chance.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)
        return usual * (SLOWER if chance.random() < HIT else 1.0)

    return seconds


@dataclass(frozen=True)
class Task:
    """Logistic regression with features of different sizes, so that some directions are slow to learn."""

    x: Tensor
    y: Tensor
    least: float

    def loss(self, weights: Tensor) -> float:
        return float(binary_cross_entropy_with_logits(self.x @ weights, self.y))

    def gradient(self, weights: Tensor, worker: int, step: int) -> Tensor:
        """Of this worker's part."""
        part = SAMPLES // WORKERS
        x, y = self.x[worker * part : (worker + 1) * part], self.y[worker * part : (worker + 1) * part]
        return x.T @ (torch.sigmoid(x @ weights) - y) / part


@lru_cache
def task() -> Task:
    chance = torch.Generator().manual_seed(7)
    sizes = torch.logspace(0, -0.75, FEATURES)
    x = torch.randn(SAMPLES, FEATURES, generator=chance) * sizes
    score = x @ (torch.randn(FEATURES, generator=chance) / sizes)
    y = (torch.sigmoid(2 * score / score.std()) > torch.rand(SAMPLES, generator=chance)).float()
    return Task(x, y, _least(x, y))


def _least(x: Tensor, y: Tensor) -> float:
    weights = torch.zeros(FEATURES, requires_grad=True)
    solver = torch.optim.LBFGS([weights], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = binary_cross_entropy_with_logits(x @ weights, y)
        loss.backward()
        return loss

    solver.step(closure)
    return float(closure().detach())


@dataclass
class Cache:
    """What each worker has read, and the clock that everybody had reached then. A copy of clock r may be read at clock
    c as long as r >= c - bound (the rule of Bosen); a worker's own changes are in it."""

    bound: int
    held: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)  # the minimum when a worker began its iteration

    def watch(self, running: Simulation) -> None:
        for worker in running.computing:
            if running.workers[worker].since == running.now:
                self.reached[worker] = running.rule.minimum

    def through(self, gradient: Gradient) -> Gradient:
        def cached(params: Tensor, worker: int, clock: int) -> Tensor:
            if worker not in self.held or self.held[worker][1] < clock - self.bound:
                self.held[worker] = params.clone(), self.reached.get(worker, 0)
            own, _ = self.held[worker]
            found = gradient(own, worker, clock)
            own.sub_(found, alpha=RATE)
            return found

        return cached


@dataclass(frozen=True)
class Outcome:
    """One run to the target; None where it was not reached."""

    iterations: float | None  # of each worker
    seconds: float | None


def ssp(bound: int, gradient: Gradient, seed: int) -> AbstractContextManager[Simulation]:
    sgd = partial(torch.optim.SGD, lr=RATE)
    start = torch.zeros(FEATURES)
    return simulation(f"ps-ssp:staleness={bound}", WORKERS, start, gradient, sgd, straggling(), seed, (), 0.0)


def solve(bound: int, way: str, seed: int) -> Outcome:
    here, cache = task(), Cache(bound)
    with ssp(bound, here.gradient if way == FRESH else cache.through(here.gradient), seed) as running:
        while len(running.trace.pushes) < CAP * WORKERS and running.advance():
            cache.watch(running)
            done = len(running.trace.pushes)
            if done % WORKERS == 0 and here.loss(running.shard.params[:FEATURES]) <= here.least * TARGET:
                return Outcome(done / WORKERS, running.now)
    return Outcome(None, None)


def idle(bound: int, seed: int) -> float:
    """Per cent of all workers' time, over a run of fixed length; what is computed does not matter here."""
    with ssp(bound, lambda params, worker, step: torch.zeros(FEATURES), seed) as running:
        while len(running.trace.pushes) < CAP * WORKERS and running.advance():
            pass
        return 100 * running.end().idle_share


def run(given: argparse.Namespace) -> Result:
    bounds, seeds = ((0, 1, 4, 16), range(1)) if given.quick else ((0, 1, 2, 3, 4, 6, 8, 12, 16), range(5))
    runs = {(way, bound): together([solve(bound, way, seed) for seed in seeds]) for way in WAYS for bound in bounds}
    waits = {bound: mean([idle(bound, seed) for seed in seeds[:2]]) for bound in bounds}
    return Result(
        "bounded",
        f"SSP, {WORKERS} workers that straggle, logistic regression",
        [table(waits, runs)],
        panels(waits, runs),
        {"workers": WORKERS, "rate": RATE, "seeds": len(seeds), "target": TARGET, "least": task().least,
         "hit": HIT, "slower": SLOWER, "spread": SPREAD},
        {"idle": {str(bound): share for bound, share in waits.items()}}
        | {way: {str(bound): vars(runs[way, bound]) for bound in bounds} for way in WAYS},
    )  # fmt: skip


def together(runs: list[Outcome]) -> Outcome:
    """The means, if all have reached the target."""
    done = [(one.iterations, one.seconds) for one in runs if one.iterations is not None and one.seconds is not None]
    if len(done) < len(runs):
        return Outcome(None, None)
    return Outcome(mean([iterations for iterations, _ in done]), mean([seconds for _, seconds in done]))


def table(waits: dict[int, float], runs: dict[tuple[str, int], Outcome]) -> Table:
    rows: list[list[Cell]] = [
        [bound, f"{share:.1f}", *(_whole(value) for way in WAYS for value in vars(runs[way, bound]).values())]
        for bound, share in waits.items()
    ]
    head = ["bound s", "idle %"] + [f"{what}, {way}" for way in WAYS for what in ("iterations", "seconds")]
    return Table(f"To a loss {TARGET - 1:.1%} above the least", head, rows)


def panels(waits: dict[int, float], runs: dict[tuple[str, int], Outcome]) -> list[Panel]:
    def lines(what: str) -> dict[str, list[tuple[float, float]]]:
        found = {way: [(float(bound), getattr(runs[way, bound], what)) for bound in waits] for way in WAYS}
        return {way: [point for point in points if point[1] is not None] for way, points in found.items()}

    shares = [(float(bound), share) for bound, share in waits.items()]
    return [
        Panel("waiting", "bound s", "idle, % of workers' time", {"both": shares}),
        Panel("iterations to the target", "bound s", "iterations of a worker", lines("iterations")),
        Panel("time to the target", "bound s", "virtual seconds", lines("seconds")),
    ]


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


if __name__ == "__main__":
    given = options(__doc__)
    leave(given, run(given))
