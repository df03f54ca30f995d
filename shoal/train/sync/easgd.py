"""Elastic averaging SGD, asynchronous: workers train alone, tied to a common centre by a spring.

Zhang, Choromanska, LeCun, NIPS'15 (1412.6651). Every so many local steps, d = alpha (x - centre); x -= d; centre += d.
The server computes d where x lies and moves the centre; the worker takes off the very same numbers.

Invariants: an exchange conserves x + centre; the gap shrinks by 1 - 2 alpha; alpha = 0 would be training alone, alpha =
1 swaps the two. Cost: the parameters once up and the change once down, every so many steps. Any optimizer will do; its
state stays with its worker. At the end everybody has the centre.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from shoal.train.ps.applier import ELASTIC
from shoal.train.ps.client import Portion
from shoal.train.ps.counterpart import SLOT
from shoal.train.ps.recipe import Recipe
from shoal.train.ps.rules import EASGD_FORCE
from shoal.train.sync.central import Centralised
from shoal.train.sync.ways import Way


class Spring(Way):
    """One optimizer's parameters and their centre."""

    applier = ELASTIC
    pushes_gradients = False

    def __init__(self, portion: Portion, optimizer: Optimizer, every: int) -> None:
        super().__init__(portion, optimizer)
        self._every = every

    def loaded(self) -> None:
        """The centre is as it was; the worker's own parameters were in its own part of the checkpoint."""
        self._marks = None

    def after(self) -> None:
        self._steps += 1
        if self._steps % self._every == 0:
            self._exchange()

    def flush(self) -> None:
        """A last exchange if there was a step since, so that all of it reached the centre; then the centre itself."""
        if self._steps % self._every:
            self._exchange()
        self.portion.pull()

    @property
    def bytes_per_step(self) -> float:
        return self.portion.layout.bytes / self._every

    def _exchange(self) -> None:
        self.portion.lay_values()
        self.portion.push(SLOT)
        self.portion.take_off()


class Elastic(Centralised):
    name = "easgd"

    def _recipe(self, optimizer: Optimizer) -> Recipe | None:
        return None

    def _check(self, optimizers: Any, recipes: Any) -> None:
        """Any optimizer will do: it stays on its worker."""

    def _kind(self, recipe: Recipe | None) -> type[Way]:
        return Spring

    def _way(self, kind: type[Way], portion: Portion, optimizer: Optimizer) -> Way:
        return Spring(portion, optimizer, int(self._options["every"]))

    def _learning_rate(self) -> str:
        workers = self._setting.world.size
        alpha = float(self._options["alpha"]) or EASGD_FORCE / workers
        return f"each worker's own; the elastic force is {alpha:.4g} every {self._options['every']} steps"

    def _staleness(self) -> Any:
        return "gradients have none; the centre is met as others left it"
