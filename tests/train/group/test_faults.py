"""What members see when one of them dies, does not come, or finds no room."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shoal.train import house
from shoal.train.errors import NoRoom, PeerLost, WaitedTooLong
from shoal.train.group import choose
from shoal.train.group.api import Group
from shoal.train.group.board import Board
from shoal.train.group.dist import DistGroup
from shoal.train.group.shm import SharedGroup
from shoal.train.group.threads import ThreadGroup
from shoal.train.seeing import Seeing
from shoal.train.wire.segment import Segment
from tests.train.ranks import run_ranks, worlds
from tests.train.support import REPOSITORY, Running, run_world

Gang = tuple[list[Group], list[Seeing]]
Make = Callable[[Path, float], Gang]


def threads(shared: Path, patience: float) -> Gang:
    groups = ThreadGroup.make(3, patience)
    return list(groups), [one.seeing for one in groups]


def shared_memory(shared: Path, patience: float) -> Gang:
    seen = [Seeing() for _ in range(3)]
    groups = run_ranks(3, lambda rank: SharedGroup.meet(shared, rank, range(3), seeing=seen[rank]))
    for group in groups:
        group.attendance._patience = patience
    return list(groups), seen


def streams(shared: Path, patience: float) -> Gang:
    every, seen = worlds(3), [Seeing() for _ in range(3)]
    groups = run_ranks(3, lambda rank: DistGroup.meet(every[rank], seen[rank], "all", 60.0))
    for group in groups:
        group._across.roll._patience = patience
    return list(groups), seen


KINDS = [threads, shared_memory, streams]


@pytest.mark.parametrize("make", KINDS)
def test_a_wait_names_who_is_missing(make: Make, shared: Path) -> None:
    groups, seen = make(shared, 60.0)

    def work(rank: int) -> None:
        if rank < 2:
            groups[rank].all_reduce(torch.ones(10))
            return
        while not seen[0].waiting == seen[1].waiting == "all-reduce of 10 float32: worker-2":
            time.sleep(0.001)
        groups[rank].all_reduce(torch.ones(10))

    run_ranks(3, work)
    assert seen[0].waiting == ""
    if make is not threads:
        assert {"worker-1", "worker-2"} <= set(seen[0].arrivals)
        assert seen[0].arrivals["worker-2"] > seen[0].arrivals["worker-1"]


@pytest.mark.parametrize("make", KINDS)
def test_waiting_ends(make: Make, shared: Path) -> None:
    groups, _ = make(shared, 0.2)
    with pytest.raises(WaitedTooLong) as late:
        groups[0].all_reduce(torch.ones(1))
    assert late.value.who == ["worker-1", "worker-2"]


SCRIPT = """
import os, sys, time, torch
from shoal.train.errors import PeerLost
from shoal.train.group.choose import make
from shoal.train.seeing import Seeing
from shoal.train.world import World

world = World.read()
group = make(world, Seeing())
group.gather(None)
print("group", type(group).__name__, flush=True)
tensor = torch.ones(int(sys.argv[1]))
if world.rank == world.size - 1:
    group.all_reduce(tensor, "mean")
    print("pausing", flush=True)
    time.sleep(600)
try:
    while True:
        group.all_reduce(tensor, "mean")
except PeerLost as lost:
    print("lost", time.monotonic(), *lost.who, flush=True)
assert world.size - 1 not in group.members()
try:
    tensor.fill_(1)
    group.all_reduce(tensor)
    print("sum", int(tensor[0]), flush=True)
except PeerLost as lost:
    print("again", *lost.who, flush=True)
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("workers", "nodes", "kind", "count"),
    [(3, 1, "SharedGroup", 10), (3, 3, "DistGroup", 300_000), (4, 2, "HostsGroup", 300_000)],
)
def test_a_killed_member_is_named(workers: int, nodes: int, kind: str, count: int) -> None:
    killed = [0.0]

    def during(world: Running) -> None:
        world.wait_for(f"worker-{workers - 1}", "pausing")
        killed[0] = time.monotonic()
        world.kill(f"worker-{workers - 1}")

    result = run_world(SCRIPT, workers=workers, nodes=nodes, during=during, args=[str(count)])
    for rank in range(workers - 1):
        name = f"worker-{rank}"
        assert result.lines(name, "group") == [f"group {kind}"], result.told()
        (lost,) = result.lines(name, "lost")
        _, when, *who = lost.split()
        assert who == [f"worker-{workers - 1}"]
        # Promised are 500 ms; here a crowded machine has more. Without noticing the death it would be half an hour.
        assert float(when) - killed[0] < 10
        if kind == "HostsGroup":
            assert result.lines(name, "again") == [f"again worker-{workers - 1}"]
        else:
            assert result.lines(name, "sum") == [f"sum {workers - 1}"]


def test_a_death_is_raised_once_and_the_rest_go_on() -> None:
    groups = ThreadGroup.make(4)
    ready = threading.Barrier(3)

    def work(rank: int) -> list[str]:
        tensor = torch.ones(3)
        groups[rank].all_reduce(tensor)
        if rank == 3:
            groups[rank].die()
            return []
        with pytest.raises(PeerLost) as lost:
            while True:
                groups[rank].all_reduce(tensor)
        ready.wait(20)
        tensor.fill_(1)
        groups[rank].all_reduce(tensor)
        assert tensor.tolist() == [3.0] * 3
        return lost.value.who

    assert run_ranks(4, work)[:3] == [["worker-3"]] * 3


def test_no_room_for_one_means_the_network_for_all(
    shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, heard: None
) -> None:
    create = Segment.create

    def refuse(path: Path, size: int, touch: bool = False) -> Segment:
        if "-w1" in Path(path).name:
            raise NoRoom("no room for 3.4 MB of shared memory in /dev/shm: 0.1 MB is free")
        return create(path, size, touch)

    monkeypatch.setattr(Segment, "create", refuse)
    for nodes in (["a", "a", "a"], ["a", "a", "b"]):
        every = worlds(3, shared, nodes)
        with caplog.at_level(logging.WARNING, "shoal.train"):
            groups = run_ranks(3, lambda rank, every=every: choose.make(every[rank], Seeing()))
        assert all(isinstance(one, DistGroup) for one in groups)
        assert "no room" in caplog.text and "over the network" in caplog.text
        assert run_ranks(3, lambda rank, groups=groups: groups[rank].gather(rank)) == [[0, 1, 2]] * 3
        for group in groups:
            group.leave()
        for world in every:
            house.close(world)
        caplog.clear()


def test_a_folder_that_is_too_small_is_noticed(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.train.wire.segment.os.statvfs", lambda folder: _Full())
    with pytest.raises(NoRoom, match=r"no room for \d\.\d MB.*0\.0 MB is free; make the tmpfs larger"):
        SharedGroup.meet(shared, 0, range(2))
    assert not list(shared.glob("*-w0")) and not list(shared.glob(".*-w0*"))


class _Full:
    f_bavail, f_frsize = 1, 4096


def test_what_a_dead_process_left_is_not_taken_for_a_member(shared: Path) -> None:
    code = f"""
import os
from pathlib import Path
from shoal.train.group.board import READY, Board
board = Board.create(Path({str(shared)!r}) / "w0", 8192, 2)
board.words[READY] = 1
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=60)
    assert (shared / "w0").exists()
    assert Board.find(shared / "w0", 2) is None


def test_nobody_waits_for_a_member_that_failed_half_way(shared: Path) -> None:
    groups, _ = shared_memory(shared, 60.0)

    class Interrupted(Exception):
        pass

    def work(rank: int) -> None:
        if rank == 2:
            with pytest.raises(Interrupted), groups[2]._exchanging():  # type: ignore[attr-defined]
                groups[2].attendance.number += 1  # type: ignore[attr-defined]
                raise Interrupted
        else:
            with pytest.raises(PeerLost) as lost:
                groups[rank].all_reduce(torch.ones(3))
            assert lost.value.who == ["worker-2"]

    run_ranks(3, work)


def test_who_does_not_begin_is_named(shared: Path) -> None:
    with pytest.raises(WaitedTooLong, match="worker-1, worker-2 to begin") as late:
        SharedGroup.meet(shared, 0, range(3), patience=0.05)
    assert late.value.who == ["worker-1", "worker-2"]


def test_a_second_group_of_a_name_is_not_mixed_up_with_the_first(shared: Path) -> None:
    every = worlds(2, shared)
    for _ in range(3):  # a fast member begins the next one while the other has not left the last

        def work(rank: int) -> list[int]:
            for number in range(5):
                group = choose.make(every[rank], Seeing())
                found = group.gather([number, rank])
                group.leave()
                assert found == [[number, 0], [number, 1]]
            return [0]

        run_ranks(2, work)


def test_a_worker_alone_has_a_group_of_one() -> None:
    group = choose.make(worlds(1)[0], Seeing())
    tensor = torch.ones(3)
    group.all_reduce(tensor, "mean")
    group.broadcast(tensor)
    assert tensor.tolist() == [1.0, 1.0, 1.0] and group.members() == (0,) and group.gather("x") == ["x"]
