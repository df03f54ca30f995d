from __future__ import annotations

import time

import pytest

from shoal._lib.clock import Deadline
from shoal.errors import LeaseLost
from shoal.job.life import Finished, Joined
from shoal.job.reasons import Reason
from shoal.store import Lease, Store
from tests.store.conftest import Opener
from tests.store.making import NOW, at_once, place, submit


def _until_taken(store: Store, holder: str, seconds: float) -> Lease:
    deadline = Deadline(30)
    while not deadline.over():
        lease = store.lease("loop", holder, seconds)
        if lease is not None:
            return lease
        time.sleep(0.01)
    raise AssertionError("the lease never ran out")


def test_a_lease_is_one_holders_until_it_is_released(store: Store) -> None:
    first = store.lease("loop", "one", 60)
    assert first is not None
    assert store.lease("loop", "two", 60) is None
    assert store.lease("other", "two", 60) is not None
    store.release(first)
    second = store.lease("loop", "two", 60)
    assert second is not None
    assert second.token > first.token


def test_a_renewed_lease_keeps_its_token_and_lasts_longer(store: Store) -> None:
    first = store.lease("loop", "one", 30)
    again = store.lease("loop", "one", 60)
    assert first is not None and again is not None
    assert again.token == first.token
    assert again.until > first.until + 20


def test_it_runs_by_the_databases_clock(store: Store) -> None:
    lease = store.lease("loop", "one", 60)
    assert lease is not None
    assert abs(lease.until - store.now() - 60) < 30
    assert abs(store.now() - time.time()) < 30


def test_an_expired_lease_is_taken_over_and_the_old_token_is_refused(open_store: Opener) -> None:
    old, new = open_store(), open_store()
    job = place(old, submit(old))
    mine = old.lease("loop", "old", 0.2)
    assert mine is not None
    theirs = _until_taken(new, "new", 60)
    assert theirs.token > mine.token
    with pytest.raises(LeaseLost, match="loop"):
        old.advance(job.id, Joined(), NOW, lease=mine)
    assert old.job(job.id) == job
    assert new.advance(job.id, Joined(), NOW, lease=theirs).started_at == NOW


def test_an_expired_lease_is_refused_even_when_nobody_took_it(store: Store) -> None:
    job = place(store, submit(store))
    lease = store.lease("loop", "one", 0.0)
    assert lease is not None
    with pytest.raises(LeaseLost):
        store.advance(job.id, Finished(Reason.COMPLETED), NOW, lease=lease)
    renewed = store.lease("loop", "one", 60)
    assert renewed is not None
    assert renewed.token > lease.token


def test_releasing_a_lost_lease_leaves_the_new_holder_alone(store: Store) -> None:
    lost = store.lease("loop", "one", 0.0)
    held = store.lease("loop", "two", 60)
    assert lost is not None and held is not None
    store.release(lost)
    assert store.lease("loop", "three", 60) is None


def test_of_many_that_race_for_a_lease_one_gets_it(open_store: Opener) -> None:
    stores = [open_store(), open_store()]
    for round_number in range(10):
        name = f"loop-{round_number}"
        calls = [lambda s=s, i=i, n=name: s.lease(n, f"{i}", 60) for i, s in enumerate(stores * 3)]
        results = at_once(*calls)
        assert len([r for r in results if isinstance(r, Lease)]) == 1
        assert len([r for r in results if r is None]) == 5
