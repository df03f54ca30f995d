"""Local SGD and its relatives under a virtual clock: the real strategy, a thread and a time for each worker.

What is exchanged does not depend on when, so the arithmetic runs as fast as it can; the times follow from the schedule:
a round begins when its last member has come and takes `exchange` seconds; with a delay, a worker waits for a result
only if it is not there yet when it is due.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from shoal.strategy import parse
from shoal.train.api import Setting
from shoal.train.group.threads import ThreadGroup
from shoal.train.simulate.pace import Seconds, steady
from shoal.train.sync.local_sgd import LocalSGD
from shoal.train.world import World

# A model, its optimizer, and a function that computes the gradients of a step and returns its loss.
Learner = tuple[nn.Module, Optimizer, Callable[[int], float]]


@dataclass
class Trace:
    """What came of it."""

    losses: list[list[float]] = field(default_factory=list)  # of each worker, at each step
    times: list[list[float]] = field(default_factory=list)  # when each worker had done each step
    idle: list[float] = field(default_factory=list)  # seconds each worker waited
    sent: list[int] = field(default_factory=list)  # bytes
    rounds: int = 0

    @property
    def seconds(self) -> float:
        return max(times[-1] for times in self.times)


def simulate(
    strategy: str,
    learner: Callable[[int], Learner],
    workers: int,
    steps: int,
    *,
    compute: Seconds | None = None,
    exchange: float = 0.0,
    seed: int = 0,
    epoch: Callable[[int], int] = lambda step: 0,
) -> Trace:
    """Every worker takes `steps` steps. `learner(rank)` makes its model, its optimizer, and a function that computes
    the gradients of a step and returns its loss; `epoch(step)` says in which epoch a step is."""
    options, groups = parse(strategy).options, ThreadGroup.make(workers)
    trace = Trace([[] for _ in groups], sent=[0 for _ in groups])
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            _train(groups[rank], options, learner(rank), steps, epoch, trace)
        except BaseException as error:
            errors.append(error)
            groups[rank].die()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    _Timing(options, compute or steady(), exchange, random.Random(seed), epoch).fill(trace, workers, steps)
    return trace


def _train(
    group: ThreadGroup,
    options: Mapping[str, Any],
    learner: Learner,
    steps: int,
    epoch: Callable[[int], int],
    trace: Trace,
) -> None:
    model, optimizer, gradients = learner
    now, world = [0], World(group.rank, group.size, source="shoal")
    sync = LocalSGD(Setting(world, options, lambda: group, group.seeing, epoch=lambda: epoch(now[0])))
    sync.attach(model, [optimizer])
    for now[0] in range(steps):
        trace.losses[group.rank].append(gradients(now[0]))
        sync.before_step(optimizer)
        optimizer.step()
        sync.after_step(optimizer)
    sync.finish()
    trace.sent[group.rank] = group.seeing.bytes_sent


@dataclass
class _Timing:
    """When everything happened."""

    options: Mapping[str, Any]
    compute: Seconds
    exchange: float
    chance: random.Random
    epoch: Callable[[int], int]
    alone: int = 0  # steps since the workers parted
    under_way: list[tuple[int, float]] = field(
        default_factory=list
    )  # the step a result is due at, and when it is there

    def fill(self, trace: Trace, workers: int, steps: int) -> None:
        times = [0.0] * workers
        trace.times, trace.idle = [[] for _ in times], [0.0] * workers
        for step in range(steps):
            times = [now + self.compute(rank, step, self.chance) for rank, now in enumerate(times)]
            due = self._due(step, max(times), trace)
            for rank, now in enumerate(times):
                times[rank] = max([now, *due])
                trace.idle[rank] += times[rank] - now
                trace.times[rank].append(times[rank])

    def _due(self, step: int, last: float, trace: Trace) -> list[float]:
        """What a worker must have seen to go on from here: when it was there."""
        options = self.options
        if self.epoch(step) < options["from_epoch"]:
            return [last + self.exchange]
        self.alone += 1
        if self.alone % (options["every"] // options["fragments"]) == 0:
            self.under_way.append((self.alone + options["delay"], last + self.exchange / options["fragments"]))
            trace.rounds += 1
        due = [there for at, there in self.under_way if at == self.alone]
        self.under_way = [(at, there) for at, there in self.under_way if at > self.alone]
        return due
