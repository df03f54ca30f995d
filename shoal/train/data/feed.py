"""All that a run reads: its loaders, each in a slot, the seed they share, and where they stand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from shoal.strategy import Strategy
from shoal.train.api import State
from shoal.train.checkpoint import rng
from shoal.train.choose import in_step
from shoal.train.data.dynamic import Dealer
from shoal.train.data.shard import Shard
from shoal.train.data.stream import Publish, stream
from shoal.train.group.api import Group
from shoal.train.seeing import Seeing
from shoal.train.tally import Tally
from shoal.train.world import World

_log = logging.getLogger("shoal.train")


class Feed:
    """One per run. Calls come from the training thread."""

    def __init__(
        self,
        world: World,
        strategy: Strategy,
        *,
        group: Callable[[], Group],
        seeing: Seeing,
        tally: Tally,
        place: Callable[[], tuple[int, int]],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`place` tells which part of the data this worker reads, of how many; it is asked at each pass."""
        self.world, self.group, self.seeing, self.tally, self.place = world, group, seeing, tally, place
        self.one = world.size == 1  # everything is read as it is
        self.in_step = not self.one and in_step(strategy)
        self.even = self.in_step or strategy.name == "native"  # whose own exchange may well be an all-reduce
        self.clerk = self._clerk(strategy)
        self._stop = stop
        self._slots: dict[int, Shard] = {}
        self._seed: int | None = None
        self._saved: State | None = None  # what a checkpoint told, for loaders that are still to come
        self._rng: State | None = None  # random numbers to go on with

    @property
    def seed(self) -> int:
        """What all workers draw their orders from. Those in step take the first worker's, so that a script that sets
        its seed is repeatable. The others must not wait for anybody: they take it from the secret they share."""
        if self._seed is None:
            if self.in_step:
                self._seed = int(self.group().gather(torch.initial_seed())[0])
            else:
                self._seed = rng.mix(self.world.secret.hex())
        return self._seed

    def shard(self, loader: Any, *, sharded: bool = False, seed: int | None = None) -> Shard:
        """This worker's part of a DataLoader, or of any iterable of batches; the same object for the same loader.
        `sharded` says that each worker's loader gives only its own part already. `seed` replaces the shared one."""
        for shard in self._slots.values():
            if shard.loader is loader:
                return shard
        slot = next(n for n in range(len(self._slots) + 1) if n not in self._slots or self._is_free(self._slots[n]))
        shard = self._slots[slot] = Shard(self, loader, slot, sharded, seed)
        saved = self._saved["slots"].pop(str(slot), None) if self._saved else None
        if saved:
            shard.load(saved)
        return shard

    def stream(
        self,
        source: Any,
        *,
        deal: bool = False,
        publish: Publish | None = None,
        every: int = 1000,
    ) -> Iterator[Any]:
        """Batches of a source without end, until it ends or the run is to stop. Each worker reads its own source; with
        `deal`, all read the same and take turns. `publish(step)` is called after every so many batches."""
        self.settle()
        return stream(self, source, deal=deal, publish=publish, every=every, stop=self._stop)

    def unfinished(self) -> bool:
        """Whether a pass is under way: what is saved now goes on in the middle of the epoch."""
        return any(shard.under_way for shard in self._slots.values())

    def settle(self) -> None:
        """Random numbers go on where the checkpoint left them. Called when training begins; harmless twice."""
        if self._rng is not None:
            rng.restore(self._rng)
            self._rng = None

    def state(self) -> State:
        """Where everything stands. Those that go in step call it together."""
        told = {str(slot): shard.state() for slot, shard in self._slots.items()}
        return {
            "rank": self.world.rank,
            "seed": self._seed,
            "rng": rng.capture(),
            "batches": self.tally.batches if self.unfinished() else 0,
            "samples": self.tally.samples,
            "slots": {slot: state for slot, state in told.items() if state is not None},
        }

    def load(self, state: State) -> None:
        """The opposite; also of another worker's state, when there are more workers now."""
        self._seed = state["seed"]
        self._saved = {**state, "slots": dict(state["slots"])}
        if state["rank"] == self.world.rank:
            self._rng = state["rng"]
            self.tally.samples = state["samples"]
        self.tally.batches = state["batches"]
        for slot, shard in self._slots.items():
            saved = self._saved["slots"].pop(str(slot), None)
            if saved:
                shard.load(saved)

    def finish(self) -> None:
        """Leaves the clerk. Harmless twice."""
        if self.clerk is not None:
            self.clerk.finish()

    def _clerk(self, strategy: Strategy) -> Dealer | None:
        if self.one or strategy.options.get("data") != "dynamic":
            return None
        if self.in_step:
            if self.world.rank == 0:
                _log.info(
                    "data=dynamic: %s takes every step together, so nobody reads more; fixed parts", strategy.name
                )
            return None
        return Dealer(self.world, self.seeing)

    def _is_free(self, shard: Shard) -> bool:
        """A slot that was not used in this epoch: a script that makes its loader anew in each epoch gets the same."""
        return shard.epoch != self.tally.epoch and not shard.under_way
