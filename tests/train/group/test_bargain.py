"""Every group keeps the same bargain: threads, shared memory, streams, and both over two machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.train import house
from shoal.train.group.api import Group
from shoal.train.group.choose import make
from shoal.train.group.dist import DistGroup
from shoal.train.group.hosts import HostsGroup
from shoal.train.group.shm import SharedGroup
from shoal.train.group.threads import ThreadGroup
from shoal.train.seeing import Seeing
from shoal.train.world import World
from tests.train.group import bargain
from tests.train.ranks import run_ranks, worlds
from tests.train.support import run_world

KINDS = {
    "threads": (ThreadGroup, []),
    "shm": (SharedGroup, ["here"] * 3),
    "dist": (DistGroup, ["a", "b", "c"]),
    "hosts": (HostsGroup, ["a", "a", "b", "b"]),
    "uneven hosts": (HostsGroup, ["a", "b", "b"]),
}


@pytest.fixture(params=KINDS)
def gang(request: pytest.FixtureRequest, shared: Path) -> Iterator[list[Group]]:
    """One group object for each rank, all in this process."""
    kind, nodes = KINDS[request.param]
    if kind is ThreadGroup:
        yield list(ThreadGroup.make(4))
        return
    every = worlds(len(nodes), shared, nodes)
    groups = run_ranks(len(every), lambda rank: make(every[rank], Seeing()))
    assert all(isinstance(one, kind) for one in groups)
    yield groups
    for group in groups:
        group.leave()
    _close(every)


def _close(every: list[World]) -> None:
    for world in every:
        house.close(world)


@pytest.mark.parametrize("check", [*bargain.CHECKS, *bargain.ALONE], ids=lambda check: check.__name__)
def test_keeps_the_bargain(gang: list[Group], check: bargain.Check) -> None:
    run_ranks(len(gang), lambda rank: check(gang[rank]))


@pytest.mark.real
@pytest.mark.parametrize(
    ("workers", "nodes", "kind"), [(3, 1, "SharedGroup"), (4, 2, "HostsGroup"), (2, 2, "DistGroup")]
)
def test_keeps_the_bargain_between_processes(workers: int, nodes: int, kind: str) -> None:
    script = "from tests.train.group import bargain; bargain.main()"
    result = run_world(script, workers=workers, nodes=nodes).check()
    for rank in range(workers):
        assert result.lines(f"worker-{rank}", "group") == [f"group {kind}"]
        assert len(result.lines(f"worker-{rank}", "ok")) == len(bargain.CHECKS) + len(bargain.ALONE)
