"""The parameter-server strategies of gradients. They differ in the rule that the servers follow (see `ps/rules.py`,
with papers and invariants) and in what may be left to the worker's own optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from shoal.train.errors import BadOptimizer
from shoal.train.ps.client import Portion
from shoal.train.ps.recipe import Recipe
from shoal.train.sync.central import Centralised
from shoal.train.sync.ways import Averaged, Stepped, Summed, Way

_SCALES = {
    "none": "each gradient counts in full, however stale",
    "inverse": "the servers shrink a stale change, by 1/staleness",
    "poly": "the servers shrink a stale change, by staleness^-a",
    "hinge": "the servers shrink a change that is staler than b",
}


class Sync(Centralised):
    """Hardsync: the mean of all, one version at a time. Equal to one process with the batches of all workers."""

    name = "ps-sync"
    own = Averaged

    def _check(self, optimizers: Sequence[Optimizer], recipes: Sequence[Recipe | None]) -> None:
        super()._check(optimizers, recipes)
        foreign = [type(one).__name__ for one, recipe in zip(optimizers, recipes, strict=True) if recipe is None]
        if foreign and self._options["backup"]:
            raise BadOptimizer(
                f"{foreign[0]} cannot run on a server, and with backup= a worker that comes late would miss a step of "
                "its own: use one of torch.optim that treats every element by itself (SGD, Adam, …), or no backup"
            )

    def _learning_rate(self) -> str:
        return "the servers apply the mean over workers; nobody scales it"

    def _staleness(self) -> Any:
        return 0


class _Unbounded(Centralised):
    own = Summed

    def _learning_rate(self) -> str:
        workers = self._setting.world.size
        scale = _SCALES[str(self._options.get("scale", "none"))]
        return f"every worker's update counts by itself, {workers} for each step of all; {scale}"


class Async(_Unbounded):
    """Downpour: applied on arrival, nobody waits."""

    name = "ps-async"

    def _way(self, kind: type[Way], portion: Portion, optimizer: Optimizer) -> Way:
        assert issubclass(kind, (Stepped, Summed))
        return kind(portion, optimizer, int(self._options["push"]), int(self._options["fetch"]))

    def _staleness(self) -> Any:
        return f"about {self._setting.world.size - 1}, without a bound"


class StaleSync(_Unbounded):
    """SSP: applied on arrival, nobody far ahead of the slowest."""

    name = "ps-ssp"

    def _staleness(self) -> Any:
        bound, workers = int(self._options["staleness"]), self._setting.world.size
        if not bound:
            return 0
        return f"about {workers - 1}; nobody computes more than {bound} steps ahead of the slowest"


class SoftSync(Centralised):
    """n-softsync: the mean of every c gradients."""

    name = "ps-softsync"

    def _learning_rate(self) -> str:
        return f"the servers apply the mean of {self._c()} gradients; {_SCALES[str(self._options['scale'])]}"

    def _staleness(self) -> Any:
        return f"about {max(0, self._setting.world.size - 1) / self._c():.3g}"

    def _c(self) -> int:
        workers, c, n = self._setting.world.size, int(self._options["c"]), int(self._options["n"])
        return c or (max(1, workers // n) if n else workers)
