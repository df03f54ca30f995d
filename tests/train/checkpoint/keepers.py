"""Keepers as the workers of a run have them, and disks that fail on purpose."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shoal.strategy import parse
from shoal.train.checkpoint import Keeper
from shoal.train.checkpoint.disk import Disk
from shoal.train.group.api import Group
from shoal.train.group.threads import ThreadGroup
from shoal.train.seeing import Seeing
from shoal.train.tally import Tally
from shoal.train.unit import Unit
from shoal.train.world import World
from tests.train.ranks import run_ranks


class Killed(BaseException):
    """The process ended here."""


class Fragile(Disk):
    """Ends the process before its `at`-th touch of the disk. With `power`, what was not synced by then is damaged, as
    when the machine loses its power."""

    def __init__(self, at: int | None = None, power: int | None = None) -> None:
        self.at, self.steps, self.power = at, 0, power
        self.unsynced: set[Path] = set()
        self.what: list[str] = []

    def step(self, what: str, path: Path) -> None:
        if self.at is not None and self.steps >= self.at:
            self._damage()
            raise Killed
        self.steps += 1
        self.what.append(what)
        if what == "write":
            self.unsynced.add(path)
        elif what == "sync":
            self.unsynced.discard(path)

    def _damage(self) -> None:
        if self.power is None:
            return
        chance = random.Random(self.power)
        for path in self.unsynced:
            if path.exists():
                content = path.read_bytes()
                path.write_bytes(content[: chance.randint(0, len(content))])
        self.power = None


def nobody() -> Group:
    raise AssertionError("nobody was to be asked")


class Worker:
    """One worker's model, optimizer and keeper."""

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        size: int = 1,
        strategy: str = "allreduce",
        group: Group | None = None,
        disk: Disk | None = None,
        model: nn.Module | None = None,
        sync: Any = None,
        averages: Any = None,
        gang: str = "",
        starts: int = 0,
    ) -> None:
        self.world = World(rank, size, outputs=folder, gang=gang, starts=starts)
        self.tally, self.middle = Tally(), False
        self.keeper = Keeper(
            self.world,
            parse(strategy),
            group=(lambda: group) if group else nobody,
            seeing=Seeing(),
            tally=self.tally,
            unfinished=lambda: self.middle,
            disk=disk,
        )
        self.model = model or nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        self.unit = Unit(0, self.model, self.model, (self.optimizer,), sync=sync)
        self.averages = averages(self.model) if averages else None
        self.keeper.add_unit(self.unit, self.averages)

    def train(self, value: float) -> None:
        """A step whose result is easy to tell from others."""
        for one in self.model.parameters():
            one.grad = torch.full_like(one, value)
        self.optimizer.step()
        self.tally.step += 1
        if self.averages:
            self.averages.update()

    def everything(self) -> list[torch.Tensor]:
        momenta = [one["momentum_buffer"] for one in self.optimizer.state_dict()["state"].values()]
        return [value.detach().clone() for value in [*self.model.state_dict().values(), *momenta]]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def in_step(
    folder: Path, size: int, work: Callable[[Worker], Any], strategy: str = "allreduce", **more: Any
) -> list[Any]:
    """`work(worker)` on workers that go in step, in threads."""
    groups = ThreadGroup.make(size, patience=20.0)
    return run_ranks(size, lambda rank: work(Worker(folder, rank, size, strategy, groups[rank], **more)))
