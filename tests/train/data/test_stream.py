"""Input without end: each worker's own or dealt, stopped when asked, published every so often."""

from __future__ import annotations

from itertools import count, islice
from typing import Any

import torch

from shoal.train.data import Feed
from shoal.train.group.threads import ThreadGroup
from tests.train.data.feeds import feed, in_step
from tests.train.ranks import run_ranks


def test_each_worker_reads_its_own_source() -> None:
    assert list(islice(feed(1, 2).stream(count(100)), 3)) == [100, 101, 102]


def test_a_common_source_is_dealt_in_turn() -> None:
    assert [list(islice(feed(rank, 2).stream(count(), deal=True), 3)) for rank in range(2)] == [[0, 2, 4], [1, 3, 5]]


def test_it_ends_when_the_run_is_to_stop() -> None:
    asked = iter([False, False, True])
    assert list(feed(stop=lambda: next(asked)).stream(count())) == [0, 1]


def test_workers_in_step_end_together() -> None:
    def read(one: Feed) -> int:
        return len(list(one.stream(range(3 + one.world.rank))))

    assert in_step(3, read) == [3, 3, 3]


def test_workers_in_step_stop_together() -> None:
    groups = ThreadGroup.make(2, patience=20.0)
    asked = [iter([False, False, True]) for _ in range(2)]

    def read(rank: int) -> list[int]:
        one = feed(rank, 2, "allreduce", groups[rank], stop=lambda: next(asked[rank]))
        return list(one.stream(count()))

    assert run_ranks(2, read) == [[0, 1], [0, 1]]


def test_the_model_is_published_every_so_often_and_at_the_end() -> None:
    steps: list[int] = []
    one = feed()
    for _ in one.stream(iter([torch.ones(4, 2)] * 7), publish=steps.append, every=3):
        one.tally.step += 1
    assert steps == [3, 6, 7]
    assert (one.tally.batches, one.tally.samples) == (7, 28)


def test_nothing_is_published_of_nothing() -> None:
    steps: list[Any] = []
    assert list(feed().stream([], publish=steps.append)) == []
    assert steps == []
