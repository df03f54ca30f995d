"""Parameter servers and workers in one process: a host per server, a thread per worker, everything else real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal._lib.ports import free_ports
from shoal.strategy import parse
from shoal.train.api import Setting
from shoal.train.finite import Finite
from shoal.train.hooks import Hooks
from shoal.train.ps.place import Place
from shoal.train.ps.serve import ParameterService
from shoal.train.seeing import Seeing
from shoal.train.strategies import SYNCHRONISERS
from shoal.train.wire.host import Host
from shoal.train.world import Peer, World

T = TypeVar("T")
SECRET = b"secret of the attempt"
LIMIT = 60.0  # seconds that a worker may take


@dataclass
class Site:
    """Servers that run in this process. Those of `node-0` share memory with workers there; others are spoken to."""

    folder: Path
    strategy: str
    workers: int
    places: list[Place]
    nodes: list[str]  # of the workers
    running: dict[int, tuple[Host, ParameterService]] = field(default_factory=dict)

    def start(self, index: int) -> None:
        """Starts a server, or another one in its place, which takes over what lies in its folder."""
        place: Place = self.places[index]
        host: list[Host] = []
        service = ParameterService(place, lambda number: host[0].hang_up(number))  # noqa: PLW0108
        host.append(Host(SECRET, {"ps": service}, place.host, place.port))
        service.recover()
        service.start()
        host[0].start()
        self.running[index] = (host[0], service)

    def stop(self, index: int) -> None:
        """Ends it as a crash would: nobody is told, memory stays."""
        host, service = self.running.pop(index)
        service.close("stopped")  # first: it must not take the end of the connections for the end of the workers
        host.close()

    def world(self, rank: int) -> World:
        node = self.nodes[rank]
        return World(
            rank=rank,
            size=self.workers,
            source="shoal",
            strategy=self.strategy,
            workers=tuple(Peer(f"worker-{one}", one, self.nodes[one], "127.0.0.1", 0) for one in range(self.workers)),
            servers=self.places[0].servers,
            secret=SECRET,
            shared=self.folder / node,
            outputs=self.folder / "outputs",
            variables={"SHOAL_TRAIN_PATIENCE": "20"},
        )

    def worker(self, rank: int, unit: int = 0) -> Worker:
        return Worker(self.world(rank), unit)

    def status(self, index: int = 0) -> dict[str, Any]:
        _, service = self.running[index]
        return {name: served.status() for name, served in service.spaces().items()}


@contextmanager
def site(
    folder: Path, strategy: str, workers: int = 2, servers: int = 1, server_nodes: Sequence[str] = (), far: bool = False
) -> Iterator[Site]:
    """`far` puts the workers on another node, so that everything travels over TCP."""
    nodes = list(server_nodes) or ["node-0"] * servers
    for name in {*nodes, "node-0", "far"}:
        (folder / name).mkdir(parents=True, exist_ok=True)
    ports = free_ports(servers)
    peers = tuple(Peer(f"server-{one}", one, nodes[one], "127.0.0.1", ports[one]) for one in range(servers))
    places = [
        Place(
            one.index, one.node, one.host, one.port, SECRET, folder / one.node, folder / "outputs", parse(strategy),
            workers, peers, folder / "roster.json",
        )
        for one in peers
    ]  # fmt: skip
    made = Site(folder, strategy, workers, places, ["far" if far else "node-0"] * workers)
    for index in range(servers):
        made.start(index)
    try:
        yield made
    finally:
        for index in list(made.running):
            made.stop(index)


class Worker:
    """One worker: a synchroniser and the hooks that a run would put around its optimizers."""

    def __init__(self, world: World, unit: int = 0) -> None:
        strategy = parse(str(world.strategy))
        self.world, self.seeing = world, Seeing()
        setting = Setting(world, strategy.options, _no_group, self.seeing, unit)
        self.sync = SYNCHRONISERS.load(strategy.name)(setting)
        self.hooks: list[Hooks] = []

    def wrap(self, model: nn.Module, *optimizers: Optimizer) -> nn.Module:
        wrapped: nn.Module = self.sync.attach(model, optimizers)
        finite = Finite("warn", lambda parameters: ["?" for _ in parameters])
        self.hooks = [Hooks(one, self.sync, finite, lambda: None) for one in optimizers]
        return wrapped

    def finish(self) -> None:
        self.sync.finish()
        for one in self.hooks:
            one.remove()


def _no_group() -> Any:
    raise AssertionError("these strategies need no group")


def together(count: int, act: Callable[[int], T], only: Sequence[int] | None = None) -> list[T]:
    """Runs `act(rank)` for every rank at once, each in a thread; raises the first error of any."""
    ranks = list(range(count)) if only is None else list(only)
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = act(rank)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    for error in errors.values():
        raise error
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"
    return [results[rank] for rank in ranks]


# -- a model whose training can be computed exactly: small whole numbers all the way --------------------------------


def whole(*shape: int, seed: int = 0) -> Tensor:
    """Small whole numbers: sums and products of them are exact, so the order of adding does not matter."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def linear(inputs: int = 5, outputs: int = 3, seed: int = 1) -> nn.Linear:
    model = nn.Linear(inputs, outputs)
    with torch.no_grad():
        model.weight.copy_(whole(outputs, inputs, seed=seed))
        model.bias.copy_(whole(outputs, seed=seed + 100))
    return model


def batch(rank: int, step: int, count: int = 4, inputs: int = 5, outputs: int = 3) -> tuple[Tensor, Tensor]:
    return whole(count, inputs, seed=1000 + 10 * step + rank), whole(count, outputs, seed=2000 + 10 * step + rank)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Half the squared error, summed over the batch: gradients of whole numbers are whole numbers."""
    return ((model(x) - y) ** 2).sum() / 2


def weights(model: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in model.parameters()]


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(left, right, strict=True))


__all__ = ["Site", "Worker", "batch", "linear", "loss_of", "replace", "same", "site", "together", "weights", "whole"]
