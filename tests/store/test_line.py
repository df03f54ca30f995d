from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import NotFound
from shoal.job.life import Finished
from shoal.job.reasons import Reason
from shoal.store import Store
from tests.store.making import NOW, ended, place, record, running, submit


def test_the_queue_is_by_priority_then_first_come(store: Store) -> None:
    low = submit(store, priority="low")
    first, second = submit(store), submit(store)
    urgent = submit(store, priority="urgent")
    assert [job.id for job in store.queue(NOW, 10)] == [urgent.id, first.id, second.id, low.id]
    assert [job.id for job in store.queue(NOW, 2)] == [urgent.id, first.id]


def test_a_job_that_pauses_before_a_retry_is_not_in_the_queue_until_then(store: Store) -> None:
    paused, _ = store.submit(replace(record(), not_before=NOW + 5), None)
    assert store.queue(NOW + 4.9, 10) == ()
    assert store.queue(NOW + 5, 10) == (paused,)


def test_only_waiting_jobs_are_in_the_queue(store: Store) -> None:
    running(store)
    ended(store)
    assert store.queue(NOW, 10) == ()


def test_active_jobs_are_those_that_hold_a_place(store: Store) -> None:
    submit(store)
    ended(store)
    starting = place(store, submit(store))
    going = running(store)
    stopping = store.advance(running(store).id, Finished(Reason.COMPLETED), NOW)
    assert store.active() == (starting, going, stopping)


def test_the_position_counts_those_that_go_first(store: Store) -> None:
    mine = submit(store)
    before = [submit(store, priority="high").id for _ in range(25)]
    store.submit(replace(record(priority="high"), not_before=9e9), None)
    submit(store)
    position, ids = store.queue_position(mine.id)
    assert position == 26
    assert list(ids) == before[:20]
    assert store.queue_position(before[0]) == (1, ())


def test_a_job_that_does_not_wait_has_no_position(store: Store) -> None:
    assert store.queue_position(running(store).id) == (0, ())
    with pytest.raises(NotFound):
        store.queue_position("nosuch")
