"""What a DataLoader is made of: its sampler's order, whether it is dealt already, and copies that read other batches.

A copy keeps everything the user chose (workers, pinning, collation, its class) and differs in one thing only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from shoal.train.checkpoint import rng

_WITH_GENERATOR = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_DEPTH = 3  # samplers inside samplers that are looked through


def is_iterable(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def samplers(loader: DataLoader[Any]) -> list[Any]:
    """The batch sampler, the sampler, and what they hold."""
    found: list[Any] = []
    waiting = [loader.batch_sampler, loader.sampler]
    for _ in range(_DEPTH):
        found += [one for one in waiting if one is not None and not any(one is old for old in found)]
        waiting = [getattr(one, name, None) for one in waiting for name in ("batch_sampler", "sampler")]
    return found


def is_dealt(loader: DataLoader[Any]) -> bool:
    """Whether it reads only this worker's part already: a DistributedSampler, or one that knows as much."""
    known = any(hasattr(one, "num_replicas") and hasattr(one, "rank") for one in samplers(loader))
    return known or getattr(loader.dataset, "_distributed", None) is not None  # datasets split by node


def generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """The user's own sources of random numbers in it."""
    every = [getattr(one, "generator", None) for one in [loader, *samplers(loader)]]
    found: list[torch.Generator] = []
    for one in every:
        if isinstance(one, torch.Generator) and not any(one is old for old in found):
            found.append(one)
    return found


class Epochs:
    """Calls `set_epoch` on everything in a loader that has it, which users forget; one that the user calls is left to
    the user."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._known = [(one, getattr(one, "epoch", None)) for one in [*samplers(loader), loader.dataset]]

    def set(self, epoch: int) -> None:
        now = []
        for one, seen in self._known:
            if hasattr(one, "set_epoch") and getattr(one, "epoch", None) == seen:
                one.set_epoch(epoch)
            now.append((one, getattr(one, "epoch", None)))
        self._known = now


def unit(loader: DataLoader[Any]) -> tuple[Any, int, bool]:
    """What is dealt: the sampler that gives it, how many make a batch, and whether an incomplete batch is dropped. A
    batch sampler of the user's own is dealt by whole batches, and so is a loader that does not batch."""
    if type(loader.batch_sampler) is BatchSampler:
        return loader.batch_sampler.sampler, loader.batch_sampler.batch_size, loader.batch_sampler.drop_last
    return index_sampler(loader), 1, False


def index_sampler(loader: DataLoader[Any]) -> Any:
    """What the loader asks for its next batch."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def count(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def draw(loader: DataLoader[Any], seed: int) -> Sequence[Any]:
    """The order of one pass, the same for the same seed; nobody's random numbers are used up."""
    sampler, _, _ = unit(loader)
    if type(sampler) is SequentialSampler:
        return range(len(sampler.data_source))
    if type(sampler) in _WITH_GENERATOR:
        own = copy.copy(sampler)
        own.generator = torch.Generator().manual_seed(seed)
        return list(own)
    given = generators(loader)
    with rng.aside(given):
        rng.sow(seed, given)
        return list(sampler)


def drawn(loader: DataLoader[Any], seed: int) -> Iterator[Any]:
    """The batches of a sampler without length, one by one; its random numbers are kept apart from everybody's."""
    batches = iter(index_sampler(loader))
    own, before = generators(loader), rng.capture()
    rng.sow(seed, own)
    while True:
        try:
            batch = next(batches, None)
        finally:
            theirs = rng.capture()
            rng.restore(before)
        if batch is None:
            return
        yield batch
        before = rng.capture()
        rng.restore(theirs)


def draw_as_plain(loader: DataLoader[Any], start: Mapping[str, Any]) -> tuple[Sequence[Any], list[torch.Tensor]]:
    """The order that a plain loop over the loader had when random numbers stood at `start`, and where it left the
    user's own generators: a sampler may draw from them up to its end."""
    own = generators(loader)
    with rng.aside(own):
        rng.restore(start["rng"], own)
        if start["seeded"]:  # the iterator draws the workers' seed before the sampler draws anything
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return list(unit(loader)[0]), [one.get_state() for one in own]


def plain_start(loader: Any) -> dict[str, Any]:
    """Where random numbers stand before a plain loop over a loader."""
    own = generators(loader) if isinstance(loader, DataLoader) else []
    fresh = not (getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is not None)
    return {"rng": rng.capture(own), "seeded": fresh}


class Batches:
    """The batches of the pass to come, each a list of what the loader's sampler gives; set before each pass."""

    def __init__(self, whole: bool) -> None:
        self.plan: Iterable[list[Any]] = ()
        self.length = 0
        self._whole = whole  # one unit is a batch

    def __iter__(self) -> Iterator[Any]:
        return (one[0] for one in self.plan) if self._whole else iter(self.plan)

    def __len__(self) -> int:
        return self.length


def reading(loader: DataLoader[Any], batches: Batches) -> DataLoader[Any]:
    """A copy of a map-style loader that reads these batches."""
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    return _altered(loader, **{name: batches})


def pouring(loader: DataLoader[Any], dataset: Slice, seed: int) -> DataLoader[Any]:
    """A copy of an iterable-style loader with another dataset. Its workers are seeded alike on all ranks, so that
    datasets that shuffle shuffle alike."""
    return _altered(loader, dataset=dataset, generator=torch.Generator().manual_seed(seed))


def passing(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A copy for one pass only: its workers end with it."""
    return _altered(loader, persistent_workers=False)


def _altered(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    other = copy.copy(loader)
    # Past DataLoader.__setattr__, which refuses these; the constructor of a subclass may want other arguments.
    other.__dict__.update(changes, _iterator=None, _IterableDataset_len_called=None)
    return other


class Slice(IterableDataset[Any]):
    """Every `size`-th item of a dataset, counted in each of the loader's workers by itself: a dataset that cuts itself
    by worker gives each rank its part of each worker's part, and one that does not gives what it would give alone.
    Other attributes are the dataset's, for the sake of `worker_init_fn`."""

    _inner: Any
    _rank: int
    _size: int
    _skip: list[int]  # items of each worker that were read before a restart

    def __init__(self, dataset: Any, rank: int, size: int, skip: Sequence[int] = ()) -> None:
        self.__dict__.update(_inner=dataset, _rank=rank, _size=size, _skip=list(skip))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = info.id if info else 0
        skip = self._skip[worker] if worker < len(self._skip) else 0
        for number, item in enumerate(self._inner):
            if number >= skip and number % self._size == self._rank:
                yield item

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


def samples_of(loader: Any) -> int | None:
    """How many samples all workers together read in an epoch; None when that is not known."""
    if not isinstance(loader, DataLoader) or is_iterable(loader) or is_dealt(loader):
        return None
    return count(unit(loader)[0]) if type(loader.batch_sampler) is BatchSampler else None


def samples(batch: Any) -> int | None:
    """How many samples a batch holds: the first side of the first tensor in it; None when there is none."""
    first = batch[0] if isinstance(batch, (list, tuple)) and batch else batch
    if isinstance(first, torch.Tensor):
        return len(first) if first.dim() else 1
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for one in batch:
            found = samples(one)
            if found is not None:
                return found
    return None
