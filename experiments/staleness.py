"""A fixed learning rate fails when gradients are stale; one divided by the staleness of each gradient does not.

Zhang, Gupta, Lian, Liu: Staleness-aware Async-SGD (arXiv 1511.05950), figure 3: 30 learners with batches of 4,
n-softsync (an update for every 30/n gradients). The real rule and the real shard run under a virtual clock; every
gradient is that of a real net on real images. Two controls have no staleness: hardsync, and one learner alone with the
same small batch and the same rate, which tells a rate too high for the batch from one too high for the staleness.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field

import torch
from digits import LEARN, error, fill, loss, net
from results import Cell, Result, Table, leave, options

from shoal._lib.chart import Panel
from shoal.train.simulate.pace import wavering
from shoal.train.simulate.server import Simulation, gradient_of, simulate

LEARNERS, BATCH = 30, 4
RATE, MOMENTUM = 0.02, 0.9
SPREAD = 0.3  # of the logarithm of compute times
FIXED, SCALED = "fixed rate", "rate / staleness"
SCALES = {FIXED: "none", SCALED: "inverse"}
DRAWN, ROOM = (1, 5, 15, 30), 10  # which n are drawn, and how many pushes a staleness must have had to be drawn


@dataclass
class Outcome:
    """One training: test error after every epoch, and how stale its gradients were."""

    errors: list[float] = field(default_factory=list)
    taus: Counter[int] = field(default_factory=Counter)
    updates: int = 0
    seconds: float = 0.0
    law: int = 0  # how far the sum of staleness is from what it must be

    @property
    def mean(self) -> float:
        return sum(tau * count for tau, count in self.taus.items()) / self.taus.total()

    def beyond(self, tau: int) -> float:
        return sum(count for one, count in self.taus.items() if one > tau) / self.taus.total()


def train(strategy: str, epochs: int, learners: int = LEARNERS) -> Outcome:
    model, outcome, per_epoch = net(), Outcome(), LEARN // BATCH
    start, gradient = gradient_of(model, lambda model, learner, step: loss(model, learner, step, BATCH))
    last: list[Simulation] = []

    def watch(running: Simulation) -> None:
        if len(running.trace.pushes) % per_epoch == 0:
            outcome.errors.append(error(fill(model, running.shard.params[: start.numel()])))
        last[:] = [running]

    trace = simulate(
        strategy, workers=learners, start=start, gradient=gradient, pushes=epochs * per_epoch,
        optimizer=lambda tensors: torch.optim.SGD(tensors, lr=RATE, momentum=MOMENTUM),
        seconds=wavering(1.0, SPREAD), watch=watch,
    )  # fmt: skip
    outcome.taus, outcome.updates, outcome.seconds = trace.staleness, trace.version, trace.seconds
    outcome.law = broken(last[0])
    return outcome


def broken(running: Simulation) -> int:
    """Every update makes all learners but the one that pushed staler by one: the staleness that was consumed and that
    of the gradients being computed add up to (learners - 1) times the version. Zero, when the books balance."""
    version = running.shard.version
    consumed = sum(push.tau for push in running.trace.pushes)
    flying = sum(version - running.workers[worker].base for worker in running.computing)
    return consumed + flying - (len(running.workers) - 1) * version


def run(given: argparse.Namespace) -> Result:
    ns, epochs = ((1, 30), 3) if given.quick else ((1, 2, 5, 10, 15, 30), 30)
    outcomes = {
        (name, n): train(f"ps-softsync:n={n},scale={scale}", epochs) for n in ns for name, scale in SCALES.items()
    }
    controls = {"hardsync": train("ps-sync", epochs), "alone": train("ps-sync", epochs, learners=1)}
    return Result(
        "staleness",
        f"n-softsync, {LEARNERS} learners, digits, {epochs} epochs",
        [errors(ns, outcomes, controls), histogram(ns, outcomes)],
        panels(ns, outcomes, controls),
        {"learners": LEARNERS, "batch": BATCH, "rate": RATE, "momentum": MOMENTUM, "epochs": epochs, "spread": SPREAD},
        {
            "errors": {f"{name}, n={n}": one.errors for (name, n), one in outcomes.items()}
            | {name: one.errors for name, one in controls.items()},
            "law": {f"{name}, n={n}": one.law for (name, n), one in outcomes.items()},
            "mean_staleness": {str(n): outcomes[FIXED, n].mean for n in ns},
            "staleness": {str(n): dict(sorted(outcomes[FIXED, n].taus.items())) for n in ns},
        },
    )


def errors(ns: tuple[int, ...], outcomes: dict[tuple[str, int], Outcome], controls: dict[str, Outcome]) -> Table:
    rows: list[list[Cell]] = [
        [f"{n}-softsync", LEARNERS // n, outcomes[FIXED, n].updates, outcomes[FIXED, n].seconds]
        + [outcomes[name, n].errors[-1] for name in SCALES]
        for n in ns
    ]
    words = {"hardsync": "hardsync (control)", "alone": f"one learner, batches of {BATCH} (control)"}
    for name, one in controls.items():
        rows.append([words[name], LEARNERS if name == "hardsync" else 1, one.updates, one.seconds, one.errors[-1], "—"])
    head = ["protocol", "gradients per update", "updates", "virtual seconds", *(f"error %, {name}" for name in SCALES)]
    return Table("Test error", head, rows)


def histogram(ns: tuple[int, ...], outcomes: dict[tuple[str, int], Outcome]) -> Table:
    rows: list[list[Cell]] = []
    for n in ns:
        one = outcomes[FIXED, n]
        spread = sorted(one.taus.elements())
        rows.append([n, one.mean, spread[len(spread) // 2], max(spread), f"{one.beyond(2 * n):.2%}", one.law])
    head = ["n", "mean staleness", "median", "largest", "beyond 2n", "conservation law off by"]
    return Table("Staleness of the gradients", head, rows)


def panels(ns: tuple[int, ...], outcomes: dict[tuple[str, int], Outcome], controls: dict[str, Outcome]) -> list[Panel]:
    ends = {name: [(float(n), outcomes[name, n].errors[-1]) for n in ns] for name in SCALES}
    curves = {name: _curve(outcomes[name, ns[-1]].errors) for name in SCALES}
    curves["hardsync"] = _curve(controls["hardsync"].errors)
    shares = {f"n = {n}": _shares(outcomes[FIXED, n].taus) for n in ns if n in DRAWN}
    return [
        Panel("error at the end", "n", "test error %", ends),
        Panel(f"error along the way, n = {ns[-1]}", "epoch", "test error %", curves),
        Panel("how stale gradients were", "staleness (updates)", "% of gradients", shares),
    ]


def _shares(taus: Counter[int]) -> list[tuple[float, float]]:
    return [(float(tau), 100.0 * count / taus.total()) for tau, count in sorted(taus.items()) if count >= ROOM]


def _curve(errors: list[float]) -> list[tuple[float, float]]:
    return [(float(epoch), error) for epoch, error in enumerate(errors, 1)]


if __name__ == "__main__":
    given = options(__doc__)
    leave(given, run(given))
