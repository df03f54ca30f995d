"""`data=dynamic` with workers in threads and a clerk behind a real host: coverage, speed, deaths, positions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils.data import DataLoader

from shoal.train import house
from shoal.train.data import Feed
from shoal.train.data.clerk import NAME, Clerk
from shoal.train.wire.host import Host
from shoal.train.world import Peer, World
from tests.train.data.feeds import Flow, feed, in_step, loader
from tests.train.ranks import run_ranks, worlds

DYNAMIC = "ps-async:data=dynamic"


@contextmanager
def workers(size: int) -> Iterator[list[Feed]]:
    """Feeds of workers with a server whose clerk they share."""
    with Host(b"secret", {NAME: Clerk()}) as host:
        peers = tuple(Peer(f"worker-{k}", k, "here", "", 0) for k in range(size))
        server = Peer("server-0", 0, "here", host.host, host.port)
        yield [
            feed(strategy=DYNAMIC, world=World(rank, size, workers=peers, servers=(server,), secret=b"secret"))
            for rank in range(size)
        ]


def values(batch: Any) -> list[int]:
    return batch.tolist() if hasattr(batch, "tolist") else [batch]


MAKERS: dict[str, Any] = {
    "map-style": lambda: loader(50, 3, shuffle=True),
    "with workers": lambda: loader(50, 3, shuffle=True, num_workers=1),
    "list": lambda: list(range(50)),
    "iterable": lambda: DataLoader(Flow(50), batch_size=3),
    "generator": lambda: (n for n in range(50)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_sample_is_read_exactly_once_when_nobody_dies(kind: str) -> None:
    with workers(3) as feeds:

        def read(rank: int) -> list[int]:
            shard = feeds[rank].shard(MAKERS[kind]())
            seen = [n for batch in shard for n in values(batch)]
            feeds[rank].finish()
            return seen

        assert Counter(n for part in run_ranks(3, read) for n in part) == Counter(range(50))
        assert all(one.clerk is None or one.clerk.reports[0].exactly_once for one in feeds)


def test_a_fast_worker_reads_more() -> None:
    slow_may_go_on = threading.Event()
    with workers(2) as feeds:

        def read(rank: int) -> int:
            count = 0
            for _ in feeds[rank].shard(loader(400, 2)):
                count += 1
                if rank == 1:
                    slow_may_go_on.wait(20)
                elif count == 150:
                    slow_may_go_on.set()
            return count

        fast, slow = run_ranks(2, read)
    assert fast + slow == 200 and fast >= 150


def test_epochs_follow_each_other_and_are_shuffled_anew() -> None:
    with workers(2) as feeds:

        def read(rank: int) -> list[list[int]]:
            own, passes = loader(40, 2, shuffle=True), []
            for epoch in range(3):
                feeds[rank].tally.begin_epoch(epoch)
                passes.append([n for batch in feeds[rank].shard(own) for n in values(batch)])
            return passes

        parts = run_ranks(2, read)
    for epoch in range(3):
        assert Counter(n for part in parts for n in part[epoch]) == Counter(range(40))


def test_a_lost_worker_is_made_good_for_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    dies = threading.Event()
    with workers(3) as feeds:

        def read(rank: int) -> list[int]:
            seen: list[int] = []
            for batch in feeds[rank].shard(loader(60, 2)):
                if rank == 1:
                    assert feeds[rank].clerk and feeds[rank].clerk._desk
                    feeds[rank].clerk._desk._link.close()  # type: ignore[union-attr]
                    dies.set()
                    return []  # it had taken a shard and trained on nothing of it
                dies.wait(20)
                seen += values(batch)
            return seen

        caplog.set_level("INFO", "shoal.train")
        parts = run_ranks(3, read)
    assert Counter(n for part in parts for n in part) == Counter(range(60))
    assert "at least once" in caplog.text and "worker-1" in caplog.text


def test_a_loop_that_is_left_early_gives_the_rest_back() -> None:
    left = threading.Event()
    with workers(2) as feeds:

        def read(rank: int) -> list[int]:
            seen: list[int] = []
            for batch in feeds[rank].shard(loader(60, 2)):
                if rank:
                    left.wait(20)
                seen += values(batch)
                if rank == 0 and len(seen) == 6:
                    break
            left.set()
            return seen

        parts = run_ranks(2, read)
    assert Counter(n for part in parts for n in part) == Counter(range(60))


def test_a_run_goes_on_with_the_shards_that_were_not_done() -> None:
    with workers(2) as feeds:

        def first(rank: int) -> tuple[list[int], Any]:
            seen: list[int] = []
            for batch in feeds[rank].shard(loader(60, 2, shuffle=True)):
                seen += values(batch)
                if len(seen) == 10:
                    return seen, feeds[rank].state()
            raise AssertionError

        before, state = first(0)
    with workers(3) as feeds:

        def second(rank: int) -> list[list[int]]:
            feeds[rank].load(state)
            own, passes = loader(60, 2, shuffle=True), []
            for epoch in range(2):
                feeds[rank].tally.epoch = epoch
                passes.append([n for batch in feeds[rank].shard(own) for n in values(batch)])
            return passes

        after = run_ranks(3, second)
    assert Counter(before) + Counter(n for part in after for n in part[0]) == Counter(range(60))
    assert Counter(n for part in after for n in part[1]) == Counter(range(60))  # and the next epoch is a whole one


def test_a_clerk_that_comes_back_is_called_again() -> None:
    clerk = Clerk()
    host = Host(b"secret", {NAME: clerk}).start()
    peers = (Peer("worker-0", 0, "here", "", 0), Peer("worker-1", 1, "here", "", 0))
    server = Peer("server-0", 0, "here", host.host, host.port)
    one = feed(strategy=DYNAMIC, world=World(0, 2, workers=peers, servers=(server,), secret=b"secret"))
    seen: list[int] = []
    for batch in one.shard(loader(60, 2)):
        seen += values(batch)
        if len(seen) == 12:
            host.close()
            host = Host(b"secret", {NAME: Clerk()}, host.host, host.port).start()  # which knows nothing
    host.close()
    assert set(seen) == set(range(60))


def test_without_servers_the_first_worker_keeps_the_clerk_until_the_others_have_left() -> None:
    every = worlds(3)
    feeds = [feed(strategy="gossip:data=dynamic", world=world) for world in every]
    first_done = threading.Event()

    def read(rank: int) -> list[int]:
        seen: list[int] = []
        for batch in feeds[rank].shard(loader(40, 2)):
            seen += values(batch)
        if rank == 0:
            first_done.set()
        else:
            first_done.wait(20)
            list(feeds[rank].shard(loader(40, 2)))  # the clerk is still there
        feeds[rank].finish()
        house.close(every[rank])
        return seen

    assert Counter(n for part in run_ranks(3, read) for n in part) == Counter(range(40))


def test_workers_in_step_read_fixed_parts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "shoal.train")
    strategy = "allreduce:data=dynamic"
    parts = in_step(2, lambda one: [n for b in one.shard(loader(8, 2)) for n in values(b)], strategy)
    assert parts == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert "takes every step together" in caplog.text
