"""What follows a step and an epoch: counts, the account of the step, averaged weights, a profile, and what is said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from shoal.strategy import Strategy
from shoal.train import voice
from shoal.train.checkpoint import Averages
from shoal.train.explain import batch
from shoal.train.profile import VARIABLE, Profile
from shoal.train.seeing import Seeing
from shoal.train.tally import Tally
from shoal.train.unit import Unit
from shoal.train.world import World

LOOK = 50  # steps between two looks for a straggler

_log = logging.getLogger("shoal.train")


class Steps:
    """Called by the hook of the first optimizer, which is what counts as a step of the run."""

    def __init__(
        self,
        world: World,
        strategy: Strategy,
        tally: Tally,
        seeing: Seeing,
        units: Sequence[Unit],
        replicas: Callable[[], int],
    ) -> None:
        self._world, self._strategy, self._tally, self._seeing = world, strategy, tally, seeing
        self._units, self._replicas = units, replicas
        self._kind = str(strategy.options.get("average", "none"))
        self._averages: list[Averages] = []
        self._averaged: int | None = None  # the last epoch that was taken in
        self._speaks = world.rank == 0 and not world.alone
        self._last: str | None = None  # the straggler that was named
        asked = world.variables.get(VARIABLE)
        self._profile = Profile(asked, seeing, tally) if asked and world.alone else None
        self._only_counts = world.alone and self._kind == "none" and self._profile is None

    @property
    def averages(self) -> Averages | None:
        """Those of the first model."""
        return self._averages[0] if self._averages else None

    def averages_of(self, unit: Unit) -> Averages | None:
        return self._averages[unit.number] if self._averages else None

    def average(self, unit: Unit) -> Averages | None:
        """Averages of the unit's weights from now on, if the strategy asks for them."""
        if self._kind == "none":
            return None
        decay = float(self._strategy.options["decay"])
        self._averages.append(Averages(unit.model, self._kind, decay, partition=unit.partition))
        return self._averages[-1]

    def stepped(self) -> None:
        self._tally.step += 1
        if self._only_counts:
            self._seeing.passed += 1
            return
        self._seeing.close_step()
        if self._averages and self._kind == "ema":
            self._update()
        if self._profile:
            self._profile.stepped(self._units)
        if self._speaks:
            self._speak()

    def epoch_over(self) -> None:
        """Averages over epochs take the model in: before it is saved, else when the next epoch begins; once."""
        if self._averages and self._kind == "swa" and self._averaged != self._tally.epoch:
            self._averaged = self._tally.epoch
            self._update()

    def _update(self) -> None:
        for averages in self._averages:
            averages.update()

    def _speak(self) -> None:
        seeing, tally = self._seeing, self._tally
        if seeing.steps == 1 and tally.batch:
            samples = f"; {tally.samples_per_epoch} samples per epoch" if tally.samples_per_epoch else ""
            _log.info("batch %s%s", batch(self._world, self._strategy, tally.batch, self._replicas()), samples)
        if seeing.lateness and seeing.steps % LOOK == 0:
            self._last = voice.straggler(seeing, self._last)
