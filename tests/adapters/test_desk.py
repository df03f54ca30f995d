"""The desk's bookkeeping: who holds which task, and what becomes of it."""

from __future__ import annotations

import pytest

from shoal.adapters.sklearn.desk import MOST_LOSSES, Call, Desk, TaskLost
from shoal.adapters.sklearn.parcels import Parcel


def filled(desk: Desk, call: Call, count: int) -> list[object]:
    return [desk.submit(Parcel(b"%d" % number), call) for number in range(count)]


def test_tasks_are_taken_in_order() -> None:
    desk, call = Desk(), Call(limit=3)
    filled(desk, call, 3)
    assert [desk.take(worker).parcel.pickled for worker in (1, 2, 3)] == [b"0", b"1", b"2"]  # type: ignore[union-attr]


def test_no_more_tasks_of_a_call_run_than_its_limit() -> None:
    desk, narrow, wide = Desk(), Call(limit=1), Call(limit=9)
    filled(desk, narrow, 2)
    filled(desk, wide, 1)
    assert [desk.take(worker).call for worker in (1, 2)] == [narrow, wide]  # type: ignore[union-attr]


def test_the_task_of_a_lost_worker_goes_to_the_next_one_before_all_others() -> None:
    desk, call = Desk(), Call(limit=9)
    filled(desk, call, 3)
    desk.take(1)
    desk.lose(1, "worker-0")
    assert desk.take(2).parcel.pickled == b"0"  # type: ignore[union-attr]


def test_a_result_is_taken_only_from_the_worker_that_holds_the_task() -> None:
    desk, call = Desk(), Call(limit=9)
    filled(desk, call, 1)
    first = desk.take(1)
    assert first is not None
    desk.lose(1, "worker-0")
    desk.take(2)
    assert desk.settle(1, first.number) is None
    assert desk.settle(2, first.number) is first
    assert desk.settle(2, first.number) is None


def test_a_task_that_takes_its_workers_with_it_is_given_up() -> None:
    desk, call = Desk(), Call(limit=9)
    future = desk.submit(Parcel(b"deadly"), call)
    for worker in range(MOST_LOSSES):
        desk.take(worker)
        desk.lose(worker, f"worker-{worker}")
    with pytest.raises(TaskLost, match="worker-0, worker-1, worker-2"):
        future.result(0)


def test_an_abandoned_call_leaves_nothing_to_take_and_its_workers_are_told() -> None:
    desk, call, other = Desk(), Call(limit=9), Call(limit=9)
    filled(desk, call, 2)
    held = desk.take(1)
    assert held is not None
    desk.abandon(call)
    desk.submit(Parcel(b"next"), other)
    assert desk.await_order(1) == held.number
    assert desk.settle(1, held.number) is None
    assert desk.take(1).parcel.pickled == b"next"  # type: ignore[union-attr]


def test_when_the_work_is_over_everybody_is_sent_home() -> None:
    desk = Desk()
    desk.close()
    assert desk.take(1) is None and desk.await_order(1) is None
