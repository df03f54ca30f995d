"""A parameter server and its workers under a virtual clock: the real rule and the real shard, no processes, no waiting.

A heap holds who finishes computing when. Who finishes pushes; whoever the rule lets go reads the parameters as they are
at that moment and begins to compute again. Time passes only by computing (and waiting for each other), so the
staleness and idle time of 32 workers cost one worker's arithmetic. The same seed gives the same run, bit for bit.

    trace = simulate("ps-softsync:n=8,scale=inverse", workers=16, start=weights, gradient=gradient, pushes=2000)
    trace.mean_staleness, trace.idle, trace.params
"""

from __future__ import annotations

import heapq
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from shoal.errors import BadSpec
from shoal.strategy import Strategy, parse
from shoal.train.errors import BadOptimizer
from shoal.train.ps import rules
from shoal.train.ps.layout import Layout, ParamInfo
from shoal.train.ps.orders import Answer, Apply, Order
from shoal.train.ps.recipe import Recipe
from shoal.train.ps.shard import STEP, Shard
from shoal.train.simulate.pace import Seconds, wavering
from shoal.train.simulate.trace import Fault, Pushed, Trace

Gradient = Callable[[Tensor, int, int], Tensor]  # (parameters, worker, its iteration from 0) → gradient
Make = Callable[[list[Tensor]], Optimizer]

_SHM = Path("/dev/shm")


def simulate(
    strategy: str,
    *,
    workers: int,
    start: Tensor,
    gradient: Gradient,
    pushes: int,
    optimizer: Make = lambda tensors: torch.optim.SGD(tensors, lr=0.01),
    seconds: Seconds | None = None,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    duplicates: float = 0.0,
    watch: Callable[[Simulation], None] = lambda simulation: None,
) -> Trace:
    """Runs until so many pushes have come. `duplicates` is the chance that a push is delivered twice; `watch` is called
    after every event."""
    with simulation(
        strategy, workers, start, gradient, optimizer, seconds or wavering(), seed, faults, duplicates
    ) as running:
        while len(running.trace.pushes) < pushes and running.advance():
            watch(running)
        return running.end()


def gradient_of(model: nn.Module, loss: Callable[[nn.Module, int, int], Tensor]) -> tuple[Tensor, Gradient]:
    """For a model: its parameters as one vector, and the gradient of `loss(model, worker, step)` at any such vector."""
    params = [one for one in model.parameters() if one.requires_grad]

    def gradient(vector: Tensor, worker: int, step: int) -> Tensor:
        vector_to_parameters(vector, params)
        return torch.cat([one.reshape(-1) for one in torch.autograd.grad(loss(model, worker, step), params)])

    return parameters_to_vector(params).detach().clone(), gradient


@contextmanager
def simulation(*arguments: Any) -> Iterator[Simulation]:
    with tempfile.TemporaryDirectory(dir=_SHM if _SHM.is_dir() else None, prefix="shoal-simulate-") as folder:
        yield Simulation(Path(folder), *arguments)


@dataclass
class _Worker:
    """One that computes, or waits for its answer."""

    step: int = 0  # iterations finished
    seq: int = 0
    clock: int = 0
    base: int = 0
    read: Tensor | None = None
    since: float = 0.0
    waiting: bool = False
    life: int = 0  # which of its lives this is: what an earlier one would have finished is forgotten


class Simulation:
    """See `simulate`. Between two calls of `advance` everything can be looked at."""

    def __init__(
        self, folder: Path, strategy: str, workers: int, start: Tensor, gradient: Gradient, optimizer: Make,
        seconds: Seconds, seed: int, faults: Sequence[Fault], duplicates: float,
    ) -> None:  # fmt: skip
        self._strategy, self._size = _checked(strategy), workers
        self._gradient, self._seconds, self._duplicates = gradient, seconds, duplicates
        self._chance = random.Random(seed)
        self._path, self._count = folder / "shard", start.numel()
        self.shard = self._fresh(start, optimizer)
        self.rule = rules.make(self._strategy.name, self._strategy.options, workers)
        self.slots: dict[int, Tensor] = {}
        self.now = 0.0
        self.workers: dict[int, _Worker] = {}
        self.trace = Trace(workers, start)
        self._heap: list[tuple[float, int, str, int, int]] = []  # time, order, what, worker, life
        self._order = 0
        for worker in range(workers):
            self._join(worker)
        for fault in faults:
            self._at(fault.at, fault.what, -1 if fault.worker is None else fault.worker, 0)

    def advance(self) -> bool:
        """The next event. False when nothing will ever happen again."""
        while self._heap:
            self.now, _, what, worker, life = heapq.heappop(self._heap)
            if what != "done":
                {"die": self._die, "join": self._join, "restart": self._restart}[what](worker)
                return True
            if worker in self.workers and self.workers[worker].life == life:
                self._finished(worker)
                return True
        return False

    def end(self) -> Trace:
        self.trace.params = self.shard.params[: self._count].clone()
        self.trace.version, self.trace.seconds = self.shard.version, self.now
        return self.trace

    @property
    def computing(self) -> list[int]:
        return sorted(worker for worker, one in self.workers.items() if not one.waiting)

    def _fresh(self, start: Tensor, optimizer: Make) -> Shard:
        layout = Layout.of([ParamInfo("w", start.numel(), str(start.dtype).replace("torch.", ""))])
        recipe = Recipe.of(optimizer([start.clone()]))
        if recipe is None:
            raise BadOptimizer("this optimizer cannot run on a server; give one of torch.optim that works by elements")
        compensate = float(self._strategy.options.get("compensate", 0.0))
        shard = Shard.create(self._path, layout.part(0), STEP, recipe, compensate)
        shard.fill(self._padded(start, layout.count))
        return shard

    # What happens.

    def _finished(self, worker: int) -> None:
        """Has computed: the gradient goes into its slot, and the push to the server."""
        one = self.workers[worker]
        assert one.read is not None
        self.trace.busy[worker] = self.trace.busy.get(worker, 0.0) + self.now - one.since
        gradient = self._gradient(one.read[: self._count].clone(), worker, one.step)
        self.slots[worker][: self._count].copy_(gradient.reshape(-1))
        one.step, one.seq, one.clock = one.step + 1, one.seq + 1, one.clock + 1
        one.waiting, one.since = True, self.now
        self.trace.steps[worker] += 1
        tau = max(0, self.rule.version - one.base)
        self.trace.pushes.append(Pushed(self.now, worker, one.step - 1, one.base, tau))
        self._push(worker)
        if self._chance.random() < self._duplicates:
            self._push(worker)

    def _push(self, worker: int) -> None:
        one = self.workers[worker]
        self._obey(self.rule.push(worker, one.seq, one.base, one.clock))

    def _obey(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, Answer):
                self._answered(order)
                continue
            self.shard.obey(order, self.slots)
            if isinstance(order, Apply):
                self.trace.updates.append(order)

    def _answered(self, answer: Answer) -> None:
        one = self.workers.get(answer.worker)
        if one is None or not one.waiting:
            return  # the second answer to a push that was delivered twice
        self.trace.dropped += answer.dropped
        self.trace.idle[answer.worker] = self.trace.idle.get(answer.worker, 0.0) + self.now - one.since
        self._compute(answer.worker)

    def _compute(self, worker: int) -> None:
        one = self.workers[worker]
        one.waiting, one.since = False, self.now
        one.read, one.base = self.shard.params.clone(), self.shard.version
        self.shard.note_read(worker)
        self._at(self.now + self._seconds(worker, one.step, self._chance), "done", worker, one.life)

    def _join(self, worker: int) -> None:
        """Says hello, learns where it stands, reads, and begins. One that is here already goes on."""
        if worker in self.workers:
            return
        self._order += 1
        self._obey(self.rule.join(worker))
        self.shard.remember(self.rule.clocks)
        seq, clock = self.rule.seqs.get(worker, 0), self.rule.clocks[worker]
        self.workers[worker] = _Worker(seq=seq, clock=clock, life=self._order)
        self.slots[worker] = torch.zeros_like(self.shard.params)
        self._compute(worker)

    def _die(self, worker: int) -> None:
        if self.workers.pop(worker, None) is not None:
            self._obey(self.rule.leave(worker))
            self.shard.remember(self.rule.clocks)

    def _restart(self, _: int) -> None:
        """The server dies between two events. Workers call again and send what was not taken."""
        self.shard.close()
        self.shard = Shard.open(self._path)
        self.rule = rules.make(self._strategy.name, self._strategy.options, self._size, self.shard.resume())
        for worker in sorted(self.workers):
            self._obey(self.rule.join(worker, self.workers[worker].clock))
        for worker in [worker for worker, one in sorted(self.workers.items()) if one.waiting]:
            if self.workers[worker].waiting:
                self._push(worker)

    def _at(self, when: float, what: str, worker: int, life: int) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, what, worker, life))

    def _padded(self, start: Tensor, count: int) -> Tensor:
        flat = torch.zeros(count, dtype=start.dtype)
        flat[: start.numel()] = start.reshape(-1)
        return flat


def _checked(text: str) -> Strategy:
    """What is simulated here: every worker pushes a gradient after every step, and reads."""
    strategy = parse(text)
    local = {key: strategy.options[key] for key in ("fetch", "push") if strategy.options.get(key, 1) != 1}
    if not strategy.name.startswith("ps-") or local or strategy.options.get("compress", "none") != "none":
        raise BadSpec(
            f"{text!r} cannot be simulated here; give a ps-* strategy that pushes and reads at every step, whole"
        )
    return strategy
