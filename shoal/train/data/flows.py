"""Inputs without a length, which are read from the front, and those that are each worker's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from shoal.train.data import loaders
from shoal.train.data.order import Cut, Layer
from shoal.train.data.passes import Pass


class Streamed:
    kind = "streamed"
    sized = False

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._epochs = loaders.Epochs(loader)
        self._copies: dict[tuple[int, int], DataLoader[Any]] = {}  # one keeps its workers from pass to pass

    def told(self) -> list[Any]:
        return [self.kind, self.loader.num_workers, self.loader.batch_size]

    def steps(self, one: Pass) -> int | None:
        items = loaders.count(self.loader.dataset)
        if items is None:
            return None
        return Cut(items, one.size, self.loader.batch_size or 1, self.loader.drop_last, even=False).steps(one.rank)

    def open(self, one: Pass) -> Iterator[Any]:
        self._epochs.set(one.epoch + one.number)
        if one.resumed:
            dataset = loaders.Slice(self.loader.dataset, one.rank, one.size, self._read_before(one))
            return iter(loaders.passing(loaders.pouring(self.loader, dataset, one.seed)))
        place = one.rank, one.size
        if place not in self._copies:
            self._copies = {place: loaders.pouring(self.loader, loaders.Slice(self.loader.dataset, *place), one.seed)}
        copy = self._copies[place]
        assert copy.generator is not None
        copy.generator.manual_seed(one.seed)
        return iter(copy)

    def taken(self, one: Pass, steps: int) -> Layer | None:
        return Layer(one.size, (steps,) * one.size)  # in batches, because items have no common order

    def _read_before(self, one: Pass) -> list[int]:
        """Items that each of the loader's workers had given to all ranks: batches come from them in turn."""
        workers = max(1, self.loader.num_workers)
        read = [0] * workers
        for size, steps in [*((layer.size, layer.taken[0]) for layer in one.layers), (one.size, one.skip)]:
            for worker in range(workers):
                turns = steps // workers + (worker < steps % workers)
                read[worker] += turns * (self.loader.batch_size or 1) * size
        return read


def _batches_before(one: Pass) -> int:
    """How many batches all workers together had read before a restart."""
    return sum(layer.size * layer.taken[0] for layer in one.layers) + one.skip * one.size


class Drawn:
    kind = "drawn"
    sized = False

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._epochs = loaders.Epochs(loader)
        self._batches = loaders.Batches(whole=False)
        self._copy = loaders.reading(loader, self._batches)

    def told(self) -> list[Any]:
        return [self.kind]

    def steps(self, one: Pass) -> int | None:
        return None

    def open(self, one: Pass) -> Iterator[Any]:
        self._epochs.set(one.epoch + one.number)
        drawn = loaders.drawn(self._loader, one.seed)
        before = _batches_before(one)
        self._batches.plan = (
            batch for number, batch in enumerate(drawn) if number >= before and number % one.size == one.rank
        )
        return iter(self._copy)

    def taken(self, one: Pass, steps: int) -> Layer | None:
        return Layer(one.size, (steps,) * one.size)


class Poured:
    kind = "poured"
    sized = False

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self.once = iter(source) is source if not hasattr(source, "__len__") else False  # a generator

    def told(self) -> list[Any]:
        return [self.kind]

    def steps(self, one: Pass) -> int | None:
        return None

    def open(self, one: Pass) -> Iterator[Any]:
        before = _batches_before(one)
        for number, batch in enumerate(self._source):
            if number >= before and number % one.size == one.rank:
                yield batch

    def taken(self, one: Pass, steps: int) -> Layer | None:
        return Layer(one.size, (steps,) * one.size)


class Ready:
    kind = "ready"

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self._epochs = loaders.Epochs(source) if isinstance(source, DataLoader) else None
        iterable = isinstance(source, DataLoader) and loaders.is_iterable(source)
        self.sized = not iterable and loaders.count(source) is not None

    def told(self) -> list[Any]:
        return [self.kind]

    def steps(self, one: Pass) -> int | None:
        return loaders.count(self._source)

    def open(self, one: Pass) -> Iterator[Any]:
        if self._epochs:
            self._epochs.set(one.epoch + one.number)
        batches = iter(self._source)
        for _ in range(one.skip):
            next(batches, None)
        return batches

    def taken(self, one: Pass, steps: int) -> Layer | None:
        return None
