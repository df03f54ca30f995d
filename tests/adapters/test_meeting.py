"""A few words between all workers."""

from __future__ import annotations

from shoal.adapters.meeting import Meeting
from shoal.train.errors import PeerLost
from tests.adapters.worlds import meet


def test_everybody_hears_what_everybody_says_in_the_order_of_the_ranks() -> None:
    told = meet(3, lambda meeting: [meeting.gather({"n": meeting.rank * 10 + turn}) for turn in range(5)])
    assert told == [[[{"n": 0 + turn}, {"n": 10 + turn}, {"n": 20 + turn}] for turn in range(5)]] * 3


def test_the_first_speaks_for_all() -> None:
    assert meet(2, lambda meeting: meeting.first(f"said by {meeting.rank}")) == ["said by 0", "said by 0"]


def test_bytes_of_the_first_reach_all_however_many() -> None:
    load = bytes(range(256)) * 100_000  # more than a message's words may hold
    assert meet(3, lambda meeting: meeting.share(load if meeting.rank == 0 else b"")) == [load] * 3


def test_alone_nobody_listens_and_one_hears_oneself() -> None:
    assert meet(1, lambda meeting: (meeting.gather(4), meeting.first(5), meeting.share(b"x"))) == [([4], 5, b"x")]


def test_a_worker_that_leaves_ends_the_others_wait_by_name() -> None:
    def work(meeting: Meeting) -> object:
        meeting.gather("all are here")
        if meeting.rank == 1:
            raise ValueError("fell")
        return meeting.gather(None)

    first, fallen, third = meet(3, work)
    assert isinstance(fallen, ValueError)
    assert isinstance(first, PeerLost) and first.who == ["worker-1"]
    assert isinstance(third, PeerLost)
