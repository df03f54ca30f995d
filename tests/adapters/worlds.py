"""Several workers as threads of one process, each with its own end of one meeting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from shoal._lib.ports import free_ports
from shoal.adapters.meeting import Meeting
from shoal.train.world import Peer, World

T = TypeVar("T")


def worlds(size: int) -> list[World]:
    port = free_ports(1)[0]
    peers = tuple(Peer(f"worker-{rank}", rank, "here", "127.0.0.1", port if not rank else 0) for rank in range(size))
    return [World(rank, size, source="shoal", workers=peers, secret=b"s3cret") for rank in range(size)]


def meet(size: int, work: Callable[[Meeting], T]) -> list[T | BaseException]:
    """What each worker's work gave or raised, in the order of the ranks."""
    results: list[T | BaseException] = [AssertionError("did not end")] * size

    def run(world: World) -> None:
        try:
            with Meeting(world) as meeting:
                results[world.rank] = work(meeting)
        except BaseException as raised:
            results[world.rank] = raised

    threads = [threading.Thread(target=run, args=(world,)) for world in worlds(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results
