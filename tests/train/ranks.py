"""Workers as threads of this process: one function for each rank, worlds that know each other, models that are easy to
calculate with."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from shoal._lib.ports import free_ports
from shoal.strategy import parse
from shoal.train.api import Setting
from shoal.train.group.api import Group
from shoal.train.seeing import Seeing
from shoal.train.world import Peer, World

T = TypeVar("T")
LIMIT = 60.0  # seconds


def run_ranks(ranks: int | Sequence[int], work: Callable[[int], T]) -> list[T]:
    """`work(rank)` in a thread for each; their results in order. The first error of any of them is raised."""
    order = list(range(ranks)) if isinstance(ranks, int) else list(ranks)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True, name=f"rank-{rank}") for rank in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT if not errors else 5.0)
    if errors:
        raise errors[0]
    stuck = [thread.name for thread in threads if thread.is_alive()]
    assert not stuck, f"{stuck} did not end"
    return [results[rank] for rank in order]


def worlds(size: int, shared: Path | None = None, nodes: Sequence[str] | None = None) -> list[World]:
    """Worlds that know each other. With `shared`, members of one node share memory in a folder of that node's name."""
    where = list(nodes or ["here"] * size)
    peers = tuple(Peer(f"worker-{k}", k, where[k], "127.0.0.1", port) for k, port in enumerate(free_ports(size)))
    folders = {node: shared / node for node in where} if shared else {}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    secret = secrets.token_hex(16).encode()
    return [
        World(rank, size, source="shoal", workers=peers, secret=secret, shared=folders.get(where[rank]))
        for rank in range(size)
    ]


def setting(
    strategy: str, world: World, group: Group | None = None, epoch: Callable[[], int] = lambda: 0, unit: int = 0
) -> Setting:
    def no_group() -> Group:
        raise AssertionError("this strategy was not to ask for a group")

    return Setting(world, parse(strategy).options, (lambda: group) if group else no_group, Seeing(), unit, epoch)


def lone(size: int, rank: int) -> World:
    """A world for strategies that only look at their group."""
    return World(rank, size, source="shoal", workers=tuple(Peer(f"worker-{k}", k, "here", "", 0) for k in range(size)))


class Line(nn.Module):
    """Whole numbers as parameters; a gradient is whatever `push` says."""

    def __init__(
        self, values: Sequence[Sequence[float]] = ((1, 2, 3), (4, 5)), dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.tensor(one, dtype=dtype)) for one in values])

    def push(self, gradients: Sequence[Tensor] | float) -> None:
        for place, one in enumerate(self.parts):
            one.grad = (
                torch.full_like(one, gradients) if isinstance(gradients, (int, float)) else gradients[place].clone()
            )

    def flat(self) -> Tensor:
        return torch.cat([one.detach().reshape(-1).clone() for one in self.parts])


def step(sync: Any, optimizer: torch.optim.Optimizer) -> None:
    """What the hooks around `optimizer.step()` do."""
    sync.before_step(optimizer)
    optimizer.step()
    sync.after_step(optimizer)


def options(**given: Any) -> Mapping[str, Any]:
    return given
