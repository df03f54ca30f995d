from __future__ import annotations

import pytest

from shoal.errors import LeaseLost, NotFound
from shoal.job.life import Finished, Gone, Joined, StopAsked, TimePassed
from shoal.job.reasons import Reason
from shoal.job.states import State
from shoal.store import Store
from tests.store.making import NOW, ended, place, record, running, seats, submit


def _kinds(store: Store, job_id: str) -> list[str]:
    return [event.kind for event in store.events(job_id)]


def test_a_whole_life_leaves_its_events_and_its_attempt(store: Store) -> None:
    job = ended(store)
    assert job.state is State.SUCCEEDED
    assert store.job(job.id) == job
    assert _kinds(store, job.id) == ["queued", "placed", "running", "finished", "succeeded"]
    (attempt,) = store.attempts(job.id)
    assert (attempt.ended_at, attempt.reason, attempt.message, attempt.exit_code) == (
        NOW + 2, "completed", "how it went", 0,
    )  # fmt: skip
    assert store.open_attempts() == ()


def test_placing_makes_an_attempt_with_its_ranks(store: Store) -> None:
    job = submit(store, workers=2)
    placement, members = seats(job, ("n1", "n2"))
    placed = store.place(job.id, placement, members, NOW + 1, None)
    assert (placed.state, placed.attempt, placed.placed_at) == (State.STARTING, 1, NOW + 1)
    attempt = store.attempt(placed.key)
    assert (attempt.job_id, attempt.number, attempt.nodes, attempt.handle) == (job.id, 1, 2, None)
    assert attempt.placement == placement
    assert store.open_attempts() == (attempt,)
    assert [(r.name, r.role, r.index, r.slot, r.node, r.local) for r in store.ranks(placed.key)] == members
    assert {rank.state for rank in store.ranks(placed.key)} == {"waiting"}


def test_a_job_that_is_no_longer_queued_is_not_placed(store: Store) -> None:
    job = submit(store)
    stopped = store.advance(job.id, StopAsked("ann"), NOW)
    assert place(store, job) == stopped
    assert store.attempts(job.id) == ()


def test_a_gang_of_5000_is_placed_in_one_go(store: Store) -> None:
    job = submit(store)
    nodes = tuple(f"n{i}" for i in range(5000))
    placed = place(store, job, nodes)
    assert store.attempt(placed.key).nodes == 5000
    assert len(store.ranks(placed.key)) == 5000


def test_a_retry_keeps_the_outcome_of_the_first_attempt(store: Store) -> None:
    job = running(store)
    store.advance(job.id, Finished(Reason.SHEPHERD_LOST, "n1 vanished"), NOW + 1)
    waiting = store.advance(job.id, Gone(), NOW + 2)
    assert (waiting.state, waiting.retries_used) == (State.QUEUED, 1)
    (first,) = store.attempts(job.id)
    assert (first.reason, first.message, first.ended_at) == ("shepherd_lost", "n1 vanished", NOW + 2)
    second = place(store, waiting, now=NOW + 10)
    assert [a.number for a in store.attempts(job.id)] == [1, 2]
    assert [a.key for a in store.open_attempts()] == [second.key]


def test_a_gang_that_vanishes_closes_its_attempt(store: Store) -> None:
    job = running(store, retries=0)
    assert store.advance(job.id, Gone(), NOW + 2).state is State.FAILED
    (attempt,) = store.attempts(job.id)
    assert (attempt.reason, attempt.message) == ("shepherd_lost", "the gang vanished")


def test_an_event_of_another_attempt_changes_nothing(store: Store) -> None:
    job = running(store)
    before = store.last_change(job.id)
    assert store.advance(job.id, Finished(Reason.CRASHED), NOW, attempt=2) == job
    assert store.last_change(job.id) == before


def test_an_event_that_means_nothing_writes_nothing(store: Store) -> None:
    job = running(store)
    before = store.last_change(job.id), _kinds(store, job.id)
    for event in (Joined(), TimePassed()):
        assert store.advance(job.id, event, NOW + 1) == job
    assert (store.last_change(job.id), _kinds(store, job.id)) == before


def test_an_unknown_job_cannot_advance(store: Store) -> None:
    with pytest.raises(NotFound):
        store.advance("nosuch", Gone(), NOW)
    with pytest.raises(NotFound):
        store.place("nosuch", *seats(record()), NOW, None)
    with pytest.raises(NotFound):
        store.add_event("nosuch", "note", "running", "", None, NOW)


def test_a_lost_lease_changes_nothing(store: Store) -> None:
    job = running(store)
    lease = store.lease("loop", "one", 60)
    assert lease is not None
    store.release(lease)
    with pytest.raises(LeaseLost, match="loop"):
        store.advance(job.id, Finished(Reason.COMPLETED), NOW, lease)
    waiting = submit(store)
    with pytest.raises(LeaseLost):
        store.place(waiting.id, *seats(waiting), NOW, lease)
    with pytest.raises(LeaseLost):
        store.set_handle(job.key, "handle", lease)
    assert store.job(job.id) == job
    assert store.attempt(job.key).handle is None


def test_events_are_paged_by_their_numbers(store: Store) -> None:
    job = submit(store)
    for number in range(5):
        store.add_event(job.id, "note", "running", f"message {number}", {"number": number}, NOW + number)
    first = store.events(job.id, limit=4)
    rest = store.events(job.id, after=first[-1].seq, limit=4)
    assert [e.message for e in (*first, *rest)][1:] == [f"message {n}" for n in range(5)]
    assert rest[-1].data == {"number": 4}
    assert store.events(job.id, after=rest[-1].seq) == ()


def test_an_alarm_is_enqueued_with_the_step_for_who_wants_it(store: Store) -> None:
    store.set_webhook("ann", "https://example.org/hook", "s3cret", ["failure"], NOW)
    ended(store, Reason.COMPLETED)
    failed = ended(store, Reason.EXIT_CODE, name="digits")
    ended(store, Reason.EXIT_CODE, owner="bob")
    (delivery,) = store.due_deliveries(NOW + 10)
    assert (delivery.owner, delivery.kind) == ("ann", "failure")
    assert delivery.payload["kind"] == "failure"
    assert delivery.payload["job"]["id"] == failed.id
    assert (delivery.payload["job"]["state"], delivery.payload["job"]["reason"]) == ("failed", "exit_code")


def test_an_overrun_raises_its_alarm_once(store: Store) -> None:
    store.set_webhook("ann", "https://example.org/hook", "s3cret", ["overrun"], NOW)
    job = running(store, estimate=60)
    for later in (61, 62):
        store.advance(job.id, TimePassed(), NOW + later)
    assert [d.kind for d in store.due_deliveries(NOW + 100)] == ["overrun"]
    assert store.job(job.id).overran
