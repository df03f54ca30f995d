"""Inputs with a length: a map-style loader, a list of batches. Any batch of them can be read at any time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from shoal.train.checkpoint import rng
from shoal.train.data import loaders
from shoal.train.data.order import Cut, Layer, remaining
from shoal.train.data.passes import Pass


class Indexed:
    kind = "indexed"
    sized = True

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._sampler, self.batch, self.drop_last = loaders.unit(loader)
        self._epochs = loaders.Epochs(loader)
        self._batches = loaders.Batches(whole=not _batches_samples(loader))
        self._copy = loaders.reading(loader, self._batches)
        self._drawn: tuple[Any, Sequence[Any]] | None = None  # the newest order and what it was drawn for
        self._left_at: list[Tensor] = []

    def told(self) -> list[Any]:
        return [self.kind, loaders.count(self._sampler), self.batch, self.drop_last]

    def steps(self, one: Pass) -> int | None:
        return self._cut(one, loaders.count(self._sampler) or 0).steps(one.rank)

    def order(self, one: Pass) -> Sequence[Any]:
        """What the pass has left to read, the same on every worker."""
        key = (one.epoch, one.number, one.seed, one.layers)
        if self._drawn is None or self._drawn[0] != key:
            self._epochs.set(one.epoch + one.number)
            if one.start is None:
                whole = loaders.draw(self.loader, one.seed)
            else:
                whole, self._left_at = loaders.draw_as_plain(self.loader, one.start)
            self._drawn = key, remaining(whole, one.layers)
        return self._drawn[1]

    def open(self, one: Pass) -> Iterator[Any]:
        order = self.order(one)
        cut = self._cut(one, len(order))
        plan = ([order[place] for place in places] for places in cut.batches(one.rank, one.skip))
        batches = self.read(plan, cut.steps(one.rank) - one.skip, one)
        return batches if one.start is None else self._ending(batches)

    def _ending(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same; at the end the user's generators stand where a pass that was not interrupted leaves them."""
        yield from batches
        for one, state in zip(loaders.generators(self.loader), self._left_at, strict=True):
            one.set_state(state)

    def read(self, plan: Iterable[list[Any]], length: int, one: Pass) -> Iterator[Any]:
        """The loader's batches of these units."""
        self._batches.plan, self._batches.length = plan, length
        if not one.resumed:
            return iter(self._copy)
        before = rng.capture(loaders.generators(self.loader))
        batches = iter(loaders.passing(self._copy))
        # Whoever was not interrupted had drawn the workers' seed at the start of the pass.
        rng.restore(before, loaders.generators(self.loader))
        return batches

    def taken(self, one: Pass, steps: int) -> Layer | None:
        return _taken(self._cut(one, self._left(one)), steps)

    def repeated(self, one: Pass) -> int:
        """Units that are read twice in a pass."""
        return self._cut(one, self._left(one)).repeated()

    def _left(self, one: Pass) -> int:
        return len(self.order(one)) if one.layers else loaders.count(self._sampler) or 0

    def _cut(self, one: Pass, count: int) -> Cut:
        return Cut(count, one.size, self.batch, self.drop_last, one.even)


def _batches_samples(loader: DataLoader[Any]) -> bool:
    return type(loader.batch_sampler) is BatchSampler


def _taken(cut: Cut, steps: int) -> Layer:
    return Layer(cut.size, tuple(cut.taken(rank, steps) for rank in range(cut.size)))


class Listed:
    kind = "listed"
    sized = True
    batch, drop_last = 1, False

    def __init__(self, batches: Sequence[Any]) -> None:
        self._all = batches

    def told(self) -> list[Any]:
        return [self.kind, len(self._all)]

    def steps(self, one: Pass) -> int | None:
        return Cut(len(self._all), one.size, even=one.even).steps(one.rank)

    def order(self, one: Pass) -> Sequence[Any]:
        return remaining(range(len(self._all)), one.layers)

    def open(self, one: Pass) -> Iterator[Any]:
        order = self.order(one)
        for places in Cut(len(order), one.size, even=one.even).batches(one.rank, one.skip):
            yield self._all[order[places[0]]]

    def read(self, plan: Iterable[list[Any]], length: int, one: Pass) -> Iterator[Any]:
        return (self._all[places[0]] for places in plan)

    def taken(self, one: Pass, steps: int) -> Layer | None:
        return _taken(Cut(len(self.order(one)), one.size, even=one.even), steps)

    def repeated(self, one: Pass) -> int:
        return Cut(len(self.order(one)), one.size, even=one.even).repeated()
