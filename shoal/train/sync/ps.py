"""The parameter-server strategies of gradients. They differ in the rule that the servers follow (see `ps/rules.py`,
with papers and invariants) and in what may be left to the worker's own optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from shoal.train.errors import BadOptimizer
from shoal.train.group.shm import SharedGroup
from shoal.train.ps.client import Named, Portion, Terms
from shoal.train.ps.recipe import Recipe
from shoal.train.sync import alike
from shoal.train.sync.central import Centralised
from shoal.train.sync.mates import Shared, mates
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
    _mates: SharedGroup | None = None

    def _check(self, optimizers: Sequence[Optimizer], recipes: Sequence[Recipe | None]) -> None:
        super()._check(optimizers, recipes)
        foreign = [type(one).__name__ for one, recipe in zip(optimizers, recipes, strict=True) if recipe is None]
        if foreign and self._options["backup"]:
            raise BadOptimizer(
                f"{foreign[0]} cannot run on a server, and with backup= a worker that comes late would miss a step of "
                "its own: use one of torch.optim that treats every element by itself (SGD, Adam, …), or no backup"
            )

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        if not self._options["backup"]:  # a backup worker is one whose own push comes too late
            self._mates = mates(self._setting)
        if self._mates is None:
            return super().attach(model, optimizers)
        try:
            alike.agree(model, optimizers, self._mates)
            return super().attach(model, optimizers)
        except BaseException:
            self._mates.leave()
            raise

    def finish(self) -> None:
        if self._mates is not None and not self._finished:
            shared = [way.portion for way in self._ways.values() if isinstance(way.portion, Shared)]
            for one in shared:
                one.part()
            if len(shared) == 1 and shared[0].speaks:  # with several optimizers it is not known whose step is next
                shared[0].go_on()
            self._mates.leave()
        super().finish()

    def facts(self) -> Mapping[str, Any]:
        facts = super().facts()
        if self._mates is None:
            return facts
        return {**facts, "transport": f"{facts['transport']}; {self._mates.size} workers of this machine push as one"}

    def _portion(self, space: str, found: Sequence[Named], terms: Terms) -> Portion:
        if self._mates is None:
            return super()._portion(space, found, terms)
        return Shared(self._setting, space, found, terms, self._mates)

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
