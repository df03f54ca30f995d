"""Numbers that cross between machines without torch: arrays, in a ring of messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.train import house
from shoal.train.group import ways
from shoal.train.group.api import Group
from shoal.train.group.choose import make, part
from shoal.train.group.streams import Streams
from shoal.train.seeing import Seeing
from tests.train.ranks import run_ranks, worlds
from tests.train.support import run_world


@pytest.fixture(params=[["a", "b"], ["a", "b", "c"], ["a", "a", "b"]], ids="".join)
def gang(request: pytest.FixtureRequest, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Group]]:
    monkeypatch.setattr(ways.importlib.util, "find_spec", lambda name: None)  # as where torch is not installed
    every = worlds(len(request.param), shared, request.param)
    groups = run_ranks(len(every), lambda rank: make(every[rank], Seeing()))
    assert all(isinstance(one._across, Streams) for one in groups)  # type: ignore[attr-defined]
    yield groups
    for group, world in zip(groups, every, strict=True):
        group.leave()
        house.close(world)


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
@pytest.mark.parametrize("size", [1, 16_384, 16_385, 700_001])
def test_a_ring_of_messages_gives_what_the_operation_says(gang: list[Group], op: str, size: int) -> None:
    parts = [(np.arange(size) + rank) % 5 - 1.0 for rank in range(len(gang))]
    fold = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "product": np.prod}[op]
    expected = fold(np.stack(parts), axis=0)

    def work(rank: int) -> None:
        mine = parts[rank].copy()
        gang[rank].all_reduce(mine, op)  # type: ignore[arg-type]
        np.testing.assert_allclose(mine, expected, rtol=1e-15)

    run_ranks(len(gang), work)


@pytest.mark.parametrize("size", [1, 700_001])
def test_everybody_gets_the_sources_values(gang: list[Group], size: int) -> None:
    def work(rank: int) -> None:
        for source in range(len(gang)):
            mine = np.full(size, float(rank))
            gang[rank].broadcast(mine, source)  # type: ignore[arg-type]
            assert (mine == source).all()

    run_ranks(len(gang), work)


def test_some_of_the_workers_make_a_group_of_their_own(shared: Path) -> None:
    every = worlds(4, shared, ["a", "a", "a", "b"])

    def work(rank: int) -> list[float]:
        sets = [ranks for ranks in ([0, 2], [1, 3], [rank]) if rank in ranks]
        found = []
        for ranks in sets:
            group, _ = part(every[rank], ranks, Seeing(), f"of-{ranks}")
            total = np.array([float(rank + 1)])
            group.all_reduce(total)  # type: ignore[arg-type]
            found.append(float(total[0]))
            group.leave()
        return found

    assert run_ranks(4, work) == [[4.0, 1.0], [6.0, 2.0], [4.0, 3.0], [6.0, 4.0]]
    for world in every:
        house.close(world)


NO_TORCH = """
    import importlib.abc, sys

    class NoTorch(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name.partition(".")[0] == "torch":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, NoTorch())
    import numpy as np
    from shoal.train.group.choose import make
    from shoal.train.seeing import Seeing
    from shoal.train.world import World

    world = World.read()
    group = make(world, Seeing())
    values = np.full(300_000, world.rank + 1.0, np.float32)
    group.all_reduce(values)
    print("sum", values.min(), values.max(), "torch" in sys.modules)
    group.leave()
"""


@pytest.mark.real
def test_a_process_without_torch_sums_in_shared_memory() -> None:
    result = run_world(NO_TORCH, workers=2).check()
    assert [result.lines(f"worker-{rank}", "sum") for rank in range(2)] == [["sum 3.0 3.0 False"]] * 2
