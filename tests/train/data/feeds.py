"""Feeds as the workers of a run have them: one after another where nobody asks anybody, in threads where they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from shoal.strategy import parse
from shoal.train.data import Feed
from shoal.train.group.api import Group
from shoal.train.group.threads import ThreadGroup
from shoal.train.seeing import Seeing
from shoal.train.tally import Tally
from shoal.train.world import Peer, World
from tests.train.ranks import run_ranks


class Numbers(Dataset[int]):
    """0, 1, 2, …"""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Flow(IterableDataset[int]):
    """0, 1, 2, …, one after another; `by_worker` cuts itself by the loader's workers."""

    def __init__(self, count: int, by_worker: bool = False) -> None:
        self.count, self.by_worker = count, by_worker

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info and self.by_worker else (0, 1)
        return iter(range(first, self.count, step))


def nobody() -> Group:
    raise AssertionError("nobody was to be asked")


def feed(
    rank: int = 0,
    size: int = 1,
    strategy: str = "ps-async",
    group: Group | None = None,
    world: World | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Feed:
    peers = tuple(Peer(f"worker-{k}", k, "here", "", 0) for k in range(size))
    world = world or World(rank, size, workers=peers, secret=b"secret")
    seeing, tally = Seeing(), Tally()
    return Feed(
        world,
        parse(strategy),
        group=(lambda: group) if group else nobody,
        seeing=seeing,
        tally=tally,
        place=lambda: (world.rank, world.size),
        stop=stop,
    )


def in_step(size: int, work: Callable[[Feed], Any], strategy: str = "allreduce") -> list[Any]:
    """`work(feed)` on workers that go in step, in threads."""
    groups = ThreadGroup.make(size, patience=60.0)
    return run_ranks(size, lambda rank: work(feed(rank, size, strategy, groups[rank])))


def numbers(batches: Any) -> list[list[int]]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def loader(count: int, batch: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(count), batch_size=batch, **options)
