"""All-reduce through rings: exact for every size, number of members and length of rings, in whatever order they run."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.train.group import stripes
from shoal.train.group.attendance import Attendance
from shoal.train.group.shm import SharedGroup
from tests.train.group.bargain import numbers
from tests.train.ranks import run_ranks


@settings(deadline=None, max_examples=25)
@given(
    members=some.integers(2, 5),
    sizes=some.lists(some.integers(0, 5000), min_size=1, max_size=6),
    stripe=some.sampled_from([64, 1024, 8192]),
    slots=some.integers(1, 4),
    ahead=some.integers(0, 3),
    seed=some.integers(0, 1000),
)
def test_sums_are_exact(members: int, sizes: list[int], stripe: int, slots: int, ahead: int, seed: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="shoal-test-"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"STRIPE": stripe, "AHEAD": ahead, "SMALL": 32, "LEAST": 64}.items():
            patch.setattr(stripes, name, value)
        patch.setattr(stripes, "slots", lambda members: slots)
        patch.setattr(Attendance, "show", _slowly(Attendance.show, seed))
        groups = run_ranks(members, lambda rank: SharedGroup.meet(folder, rank, range(members), patience=20))

        def work(rank: int) -> None:
            for size in sizes:
                tensor = numbers(size, rank)
                groups[rank].all_reduce(tensor)
                assert torch.equal(tensor, sum(numbers(size, one) for one in range(members)))
            groups[rank].gather(None)
            groups[rank].leave()

        run_ranks(members, work)
    assert not [one for one in folder.iterdir() if one.suffix != ".lock"]
    shutil.rmtree(folder)


def _slowly(show: object, seed: int) -> object:
    """Members stop here and there, so that others run ahead of them."""
    dice = random.Random(seed)

    def slow(self: Attendance, word: int, value: int) -> None:
        if dice.random() < 0.05:
            time.sleep(0.0005)
        show(self, word, value)  # type: ignore[operator]

    return slow


def test_a_stripe_has_a_block_for_everyone() -> None:
    for members in range(2, 9):
        for count in (100_000, 1_000_000, 100_000_000):
            size = stripes._stripe(count, 4, members)
            assert size % members == 0 and size * 4 <= stripes.STRIPE
    assert stripes._stripe(10, 8, 64) == 8192 - 8192 % 64
