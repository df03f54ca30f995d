"""One loader as this worker reads it: `for batch in run.shard(loader)`.

Each pass cuts the loader anew by (rank, size) and is counted, so that a checkpoint knows where it stands and another
number of workers can go on there. In a world of one the loader is read as it is, bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from shoal.train.api import State
from shoal.train.checkpoint import rng
from shoal.train.data import flows, loaders, sized, sources, vote
from shoal.train.data.order import Layer
from shoal.train.data.passes import Pass, Source
from shoal.train.errors import Disagreement
from shoal.train.seeing import DATA, Seeing

if TYPE_CHECKING:
    from shoal.train.data.feed import Feed

_END = object()
_log = logging.getLogger("shoal.train")


class Shard:
    """Iterable any number of times; each time is a pass. Made by `Feed.shard`."""

    def __init__(self, feed: Feed, loader: Any, slot: int, sharded: bool, seed: int | None) -> None:
        self.loader, self.slot = loader, slot
        self.name = f"loader {slot}"
        self.epoch = feed.tally.epoch  # in which it was last used
        self.under_way = False
        self._feed, self._seed = feed, seed
        self._sharded = sharded
        self._made: Source | None = None
        self._agreed = False
        self._pass: Pass | None = None
        self._steps = 0  # done in the newest pass, also before a restart
        self._start: Mapping[str, Any] | None = None  # random numbers at the start of a plain pass
        self._dealt_before: Mapping[str, Any] | None = None  # what the clerk knew before a restart
        self._saved: State | None = None

    def __iter__(self) -> Iterator[Any]:
        return self._read()

    def __len__(self) -> int:
        """Batches of this worker in a whole pass; TypeError where that is not known, as with a DataLoader."""
        length = len(self.loader) if self._feed.one else self._source.steps(self._any())
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return length

    @property
    def _source(self) -> Source:
        if self._made is None:
            self._made = sources.of(self.loader, self._sharded)
        return self._made

    # -- a pass ------------------------------------------------------------------------------------------------------

    def _read(self) -> Iterator[Any]:
        feed, tally, samples = self._feed, self._feed.tally, loaders.samples
        feed.settle()
        one = self._begin()
        counts = self.slot == 0
        batches = self._plain(one) if feed.one and not one.layers else self._dealt(one)
        if counts:
            tally.length, tally.samples_per_epoch = self._length(one), loaders.samples_of(self.loader)
        try:
            for batch in batches:
                self._steps += 1
                if counts:
                    tally.took(samples(batch))
                yield batch
        finally:  # also when the loop is left early: what it left is not read later
            self.under_way = False

    def _begin(self) -> Pass:
        """The pass to read now: the one that a restart interrupted, or the next."""
        feed, saved = self._feed, self._saved
        self._saved = None
        one = self._interrupted(saved) if saved and saved["under_way"] else None
        if one is None:
            number = saved["number"] + 1 if saved and saved["epoch"] == feed.tally.epoch else 0
            before = self._pass
            if before is not None and before.epoch == feed.tally.epoch:
                number = before.number + 1
            one = self._next(number)
        self._pass, self._steps, self.under_way, self.epoch = one, one.skip, True, feed.tally.epoch
        return one

    def _next(self, number: int) -> Pass:
        feed = self._feed
        rank, size = feed.place()
        epoch, seed = feed.tally.epoch, 0
        if not feed.one:
            seed = rng.mix(feed.seed if self._seed is None else self._seed, self.slot, epoch, number)
        return Pass(epoch, number, seed, rank, size, feed.even)

    def _any(self) -> Pass:
        """Any whole pass, for its length: no seed is agreed on for that."""
        return Pass(0, 0, 0, *self._feed.place(), self._feed.even)

    def _plain(self, one: Pass) -> Iterator[Any]:
        """The loader itself; after a restart from where random numbers stood at the start of the pass."""
        self._start = one.start or loaders.plain_start(self.loader)
        if not one.skip:
            return timed(iter(self.loader), self._feed.seeing)
        if isinstance(self._source, sized.Indexed):
            return timed(self._source.open(one), self._feed.seeing)
        own = loaders.generators(self.loader) if isinstance(self.loader, DataLoader) else []
        before = rng.capture(own)
        rng.restore(self._start["rng"], own)
        batches = iter(self.loader)
        for _ in range(one.skip):
            next(batches, None)
        rng.restore(before, own)
        return timed(batches, self._feed.seeing)

    def _dealt(self, one: Pass) -> Iterator[Any]:
        feed = self._feed
        self._agree(self._source)
        source = self._source
        if feed.clerk is not None and source.kind != "ready":
            before, self._dealt_before = self._dealt_before, None
            return feed.clerk.deal(self, source, one, before)
        batches = timed(source.open(one), feed.seeing)
        if not feed.in_step:
            return batches
        if not source.sized:
            return vote.together(batches, feed.group(), feed.seeing, self.name)
        if source.kind == "ready":
            length = vote.shortest(source.steps(one) or 0, feed.group) - one.skip
            return islice(batches, length)
        return batches

    def _agree(self, source: Source) -> None:
        """Workers that read different data find out here, not by waiting for each other at the end of an epoch."""
        if self._agreed or not self._feed.in_step:
            return
        self._agreed = True
        told, first = self._feed.group().gather(source.told()), self._feed.world.rank == 0
        for number, other in enumerate(told):
            if other[0] != told[0][0]:
                raise Disagreement(
                    f"{self.name} is {told[0][0]} on worker-0 and {other[0]} on number {number} of the workers: give "
                    "run.shard the same kind of loader everywhere"
                )
        if any(other != told[0] for other in told):
            if first:
                _log.info(
                    "%s differs between workers (%s): each reads its own, all end with the shortest", self.name, told
                )
            self._made = flows.Ready(self.loader)
        elif first and isinstance(source, (sized.Indexed, sized.Listed)):
            again = source.repeated(self._any())
            if again:
                _log.info(
                    "%s: %d are read twice in an epoch, so that all do the same number of steps", self.name, again
                )

    def _length(self, one: Pass) -> int | None:
        return loaders.count(self.loader) if self._feed.one else self._source.steps(one)

    # -- where it stands ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any] | None:
        """None when it has not been read yet."""
        one = self._pass
        if one is None:
            return dict(self._saved) if self._saved else None
        state: dict[str, Any] = {
            "kind": self._source.kind,
            "told": self._source.told(),
            "epoch": one.epoch,
            "number": one.number,
            "under_way": self.under_way,
            "steps": self._steps,
            "rank": one.rank,
            "size": one.size,
            "seed": one.seed,
            "layers": [[layer.size, *layer.taken] for layer in one.layers],
        }
        if isinstance(self.loader, DataLoader):
            state["generators"] = [one.get_state() for one in loaders.generators(self.loader)]
        if self.under_way:
            state.update(self._middle(one))
        return state

    def _middle(self, one: Pass) -> dict[str, Any]:
        feed = self._feed
        if feed.clerk is not None and self._source.kind != "ready":
            return {"dealt": feed.clerk.state(self)}
        taken = self._source.taken(one, self._steps) if feed.in_step or feed.one else None
        return {
            "taken": None if taken is None else [taken.size, *taken.taken],
            "start": self._start if feed.one and not one.layers else one.start,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """The next pass goes on there. A state of another kind of loader is passed over."""
        if saved["kind"] != self._source.kind:
            _log.warning("%s was %s and is %s now: it starts over", self.name, saved["kind"], self._source.kind)
            return
        if isinstance(self.loader, DataLoader):
            for one, state in zip(loaders.generators(self.loader), saved.get("generators", ())):  # noqa: B905
                one.set_state(state)
        self._saved = saved

    def _interrupted(self, saved: State) -> Pass | None:
        """The pass that was under way, for this worker as it is now; None when it cannot be taken up."""
        feed = self._feed
        if saved["epoch"] != feed.tally.epoch:
            return None
        rank, size = feed.place()
        layers = tuple(Layer(width, tuple(taken)) for width, *taken in saved["layers"])
        one = Pass(saved["epoch"], saved["number"], saved["seed"], rank, size, feed.even, 0, layers, saved.get("start"))
        if (feed.clerk is not None) == ("dealt" in saved):
            self._dealt_before = saved.get("dealt")
            if feed.clerk is not None:
                return one
            if (saved["rank"], saved["size"], saved["told"]) == (rank, size, self._source.told()):
                return replace(one, skip=saved["steps"])
        taken = saved.get("taken")
        if taken is None:
            _log.warning(
                "%s: it is not known what %d workers had read: the epoch starts over", self.name, saved["size"]
            )
            return None
        return replace(one, layers=(*layers, Layer(taken[0], tuple(taken[1:]))))


def timed(batches: Iterator[Any], seeing: Seeing) -> Iterator[Any]:
    """The same; the time to get each counts as DATA."""
    clock, seconds = seeing.clock, seeing.seconds
    while True:
        began = clock()
        batch = next(batches, _END)
        seconds[DATA] += clock() - began
        if batch is _END:
            return
        yield batch
