"""Gossip under a virtual clock: AD-PSGD, SGP and D-PSGD with the real replicas, topologies and squeezers.

A worker is a list of tensors and a function that trains them by one step. Compute times and latencies are drawn from a
seeded generator, so a run can be repeated event by event; messages can be lost, workers can die.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from shoal.train.compress import Compressor, TopK
from shoal.train.flat import Flat
from shoal.train.gossip.public import Public
from shoal.train.gossip.push import TAKES
from shoal.train.gossip.replica import Flats, Replica
from shoal.train.gossip.sparse import Sparse
from shoal.train.simulate.clock import Clock
from shoal.train.simulate.pace import Seconds, wavering
from shoal.train.topology import ONE_PEER, Topology, Weights


class Trainee(Protocol):
    """One worker's model."""

    tensors: Sequence[Tensor]

    def train(self) -> None:
        """One step, in place."""
        ...


@dataclass
class Worker:
    """One worker as the simulation keeps it."""

    rank: int
    trainee: Trainee
    replica: Replica
    steps: int = 0
    stale: list[int] = field(default_factory=list)  # of each gradient
    weights: list[float] = field(default_factory=list)  # with which each step counted
    busy: bool = False  # an exchange of its own is under way
    alive: bool = True
    taken: dict[int, int] = field(default_factory=dict)
    done_at: float = 0.0


class Simulation:
    """`mode` is pairs or push. `compute` and `latency` say how long a step and a message take; `loses` is the part of
    the pushed messages that is lost on the way (and, being unanswered, is taken back)."""

    def __init__(
        self,
        trainees: Sequence[Trainee],
        topology: Topology,
        mode: str = "pairs",
        *,
        seed: int = 0,
        every: int = 1,
        compute: Seconds | None = None,
        latency: Seconds | None = None,
        loses: float = 0.0,
        squeeze: Compressor | None = None,
    ) -> None:
        self.clock, self.topology, self.mode, self.every = Clock(), topology, mode, every
        self.workers = [Worker(rank, one, Replica(Flat(one.tensors))) for rank, one in enumerate(trainees)]
        self.flying: dict[int, tuple[Flats, float]] = {}  # shares that have left and not arrived
        self.calls: list[tuple[float, int, int, str]] = []  # when, who, whom, what came of it
        self._random = random.Random(seed)
        self._compute, self._latency, self._loses = compute or wavering(), latency or wavering(0.1), loses
        self._squeeze = squeeze
        self._sparse = [Sparse(one.replica, squeeze) for one in self.workers] if isinstance(squeeze, TopK) else []
        self._publics: dict[tuple[int, int], tuple[Public, Public]] = {}
        self._number = 0

    def run(self, steps: int, until: float = float("inf")) -> None:
        """Every worker takes that many steps, each at its own pace; then what is under way arrives."""
        for worker in self.workers:
            self._plan(worker, steps)
        self.clock.run(until)

    def kill(self, rank: int) -> None:
        """From now on that worker neither trains nor answers, and everybody knows it."""
        self.workers[rank].alive = False

    def present(self) -> list[int]:
        return [worker.rank for worker in self.workers if worker.alive]

    def total(self) -> tuple[Flats, float]:
        """Σx and Σw over the workers and over what is under way."""
        flats = [torch.zeros_like(one, dtype=torch.float64) for one in self.workers[0].replica.x]
        weight = 0.0
        for values, share in [*((w.replica.x, w.replica.weight) for w in self.workers), *self.flying.values()]:
            for one, value in zip(flats, values, strict=True):
                one.add_(value)
            weight += share
        return flats, weight

    def distance(self) -> float:
        """The largest distance of any worker's values from their mean."""
        every = torch.stack([torch.cat(worker.replica.copy()) for worker in self.workers if worker.alive])
        return float((every - every.mean(dim=0)).norm(dim=1).max())

    def _plan(self, worker: Worker, steps: int) -> None:
        if worker.steps < steps and worker.alive:
            self.clock.after(self._compute(worker.rank, worker.steps, self._random), lambda: self._step(worker, steps))

    def _step(self, worker: Worker, steps: int) -> None:
        if not worker.alive:
            return
        worker.trainee.train()
        worker.weights.append(worker.replica.weight)
        worker.stale.append(worker.replica.step())
        worker.steps += 1
        worker.done_at = self.clock.now
        worker.taken.clear()
        if worker.steps % self.every == 0 and not worker.busy:
            turn = worker.steps // self.every - 1
            (self._call if self.mode == "pairs" else self._push)(worker, turn)
        self._plan(worker, steps)

    # -- pairs ---------------------------------------------------------------------------------------------------------

    def _call(self, worker: Worker, turn: int) -> None:
        near = self.topology.pairs(self.present()).get(worker.rank, ())
        if not near:
            return
        other = self.workers[near[turn % len(near)] if self.topology.name == ONE_PEER else self._random.choice(near)]
        worker.busy = True
        if self._sparse:
            self._call_sparse(worker, other)
            return
        sent = worker.replica.copy()
        self._message(worker, lambda: self._answer(worker, other, sent))

    def _message(self, worker: Worker, arrives: Callable[[], None]) -> None:
        self.clock.after(self._latency(worker.rank, worker.steps, self._random), arrives)

    def _call_sparse(self, worker: Worker, other: Worker) -> None:
        ours, theirs = self._sparse[worker.rank], self._sparse[other.rank]
        places = ours.pick()
        values = ours.read(places)

        def answer() -> None:
            ways = theirs.answer(places, values)
            self._message(other, lambda: accept(ways))

        def accept(ways: list[Tensor]) -> None:
            worker.busy = False
            ours.accept(places, ways)
            self.calls.append((self.clock.now, worker.rank, other.rank, "averaged"))

        self._message(worker, answer)

    def _answer(self, worker: Worker, other: Worker, sent: Flats) -> None:
        if not (other.alive and worker.alive):
            worker.busy = False
            self.calls.append((self.clock.now, worker.rank, other.rank, "lost"))
            return
        if self._squeeze is None:
            other.replica.answer(sent)
            way = sent
        else:
            way = self._squeezed(worker.rank, other, sent)
        self._message(other, lambda: self._accept(worker, other, way))

    def _accept(self, worker: Worker, other: Worker, way: Flats) -> None:
        worker.busy = False
        worker.replica.accept(way)
        self.calls.append((self.clock.now, worker.rank, other.rank, "averaged"))

    def _squeezed(self, rank: int, other: Worker, sent: Flats) -> Flats:
        """What the two ends of a squeezed exchange do, one after the other."""
        assert self._squeeze is not None
        layout, pair = other.replica.layout, (rank, other.rank)
        first = pair not in self._publics
        ours, theirs = self._publics.setdefault(pair, (Public(layout, self._squeeze), Public(layout, self._squeeze)))
        theirs.follow(_joined(ours.advance(sent, first)), first)
        ours.follow(_joined(theirs.advance(other.replica.copy(), first)), first)
        other.replica.accept(theirs.way())
        return ours.way()

    # -- shares --------------------------------------------------------------------------------------------------------

    def _push(self, worker: Worker, turn: int) -> None:
        near = self.topology.out(worker.rank, self.present(), turn)
        for rank in near:
            share = worker.replica.layout.empty()
            left = len(near) + 1 - near.index(rank)
            weight = worker.replica.give(1 / left, share)  # equal shares of what there was before the first
            self._number += 1
            self.flying[self._number] = (share, weight)
            other, number, lost = self.workers[rank], self._number, self._random.random() < self._loses
            self._message(worker, partial(self._arrive, worker, other, number, lost))

    def _arrive(self, worker: Worker, other: Worker, number: int, lost: bool) -> None:
        share, weight = self.flying.pop(number)
        refused = other.taken.get(worker.rank, 0) >= TAKES or not other.alive
        if lost or refused:
            worker.replica.receive(share, weight)
        else:
            other.taken[worker.rank] = other.taken.get(worker.rank, 0) + 1
            other.replica.receive(share, weight)
        said = "lost" if lost else "refused" if refused else "pushed"
        self.calls.append((self.clock.now, worker.rank, other.rank, said))


def mix(values: Sequence[Flats], weights: Weights) -> list[Flats]:
    """One synchronous mixing step, x_i ← Σ_j W_ij·x_j (D-PSGD: Lian et al., NIPS 2017)."""
    mixed: list[Flats] = []
    for row in weights:
        own = [torch.zeros_like(one) for one in values[0]]
        for weight, flats in zip(row, values, strict=True):
            if weight:
                torch._foreach_add_(own, flats, alpha=weight)
        mixed.append(own)
    return mixed


def synchronous(trainees: Sequence[Trainee], topology: Topology, steps: int) -> None:
    """D-PSGD: every worker takes a step from its own values while these are mixed; the step's change is then added:
    x_i ← Σ_j W_ij·x_j − γ·g_i(x_i)."""
    layouts = [Flat(one.tensors) for one in trainees]
    members = range(len(trainees))
    for turn in range(steps):
        before = [layout.read() for layout in layouts]
        mixed = mix(before, topology.doubly_stochastic(members, turn))
        for trainee, layout, start, goal in zip(trainees, layouts, before, mixed, strict=True):
            trainee.train()
            change = layout.read()
            torch._foreach_sub_(change, start)
            torch._foreach_add_(goal, change)
            layout.write(goal)


def _joined(parts: Sequence[bytes | bytearray | memoryview]) -> memoryview:
    return memoryview(bytearray().join(parts))
