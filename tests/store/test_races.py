"""Two servers on one database do the same thing at the same moment: it happens once."""

from __future__ import annotations

from functools import partial
from typing import Any

from shoal.job.life import Finished, Gone, JobRecord, StopAsked
from shoal.job.reasons import Reason
from shoal.job.states import State
from tests.store.conftest import Opener
from tests.store.making import NOW, at_once, join, place, record, running, seats, submit

ROUNDS = 10


def _sound(results: list[Any]) -> list[Any]:
    faults = [result for result in results if isinstance(result, BaseException)]
    assert faults == []
    return results


def test_the_same_key_submitted_at_once_is_one_job(open_store: Opener) -> None:
    stores = [open_store(), open_store()] * 2
    for number in range(ROUNDS):
        calls = [lambda s=s, n=number: s.submit(record(), f"key-{n}") for s in stores]
        results = _sound(at_once(*calls))
        assert len({job.id for job, _ in results}) == 1
        assert sorted(created for _, created in results) == [False, False, False, True]


def test_one_step_of_a_job_is_taken_once(open_store: Opener) -> None:
    stores = [open_store(), open_store()] * 2
    for _ in range(ROUNDS):
        job = running(stores[0])
        reasons = (Reason.COMPLETED, Reason.EXIT_CODE, Reason.CRASHED, Reason.KILLED)
        calls = [
            lambda s=s, j=job, r=r: s.advance(j.id, Finished(r), NOW) for s, r in zip(stores, reasons, strict=True)
        ]
        results: list[JobRecord] = _sound(at_once(*calls))
        assert len({one.outcome for one in results}) == 1
        assert [e.kind for e in stores[0].events(job.id)].count("finished") == 1
        results = _sound(at_once(*[lambda s=s, j=job: s.advance(j.id, Gone(), NOW, attempt=1) for s in stores]))
        assert len(stores[0].attempts(job.id)) == 1
        assert len([e for e in stores[0].events(job.id) if e.kind in ("retry", "failed", "succeeded")]) == 1


def test_a_job_is_placed_once(open_store: Opener) -> None:
    stores = [open_store(), open_store()] * 2
    for _ in range(ROUNDS):
        job = submit(stores[0])
        calls = [lambda s=s, i=i, j=job: place(s, j, (f"n{i}",)) for i, s in enumerate(stores)]
        results: list[JobRecord] = _sound(at_once(*calls))
        assert {one.attempt for one in results} == {1}
        (attempt,) = stores[0].attempts(job.id)
        assert [rank.node for rank in stores[0].ranks(attempt.key)] == [attempt.placement[0].node]


def test_a_job_is_placed_or_stopped_but_never_both(open_store: Opener) -> None:
    one, two = open_store(), open_store()
    for _ in range(ROUNDS):
        job = submit(one)
        _sound(
            at_once(
                partial(one.place, job.id, *seats(job), NOW, None),
                partial(two.advance, job.id, StopAsked("ann"), NOW),
            )
        )
        after = one.job(job.id)
        assert after.state in (State.STOPPED, State.STOPPING)
        assert len(one.attempts(job.id)) == (1 if after.state is State.STOPPING else 0)


def test_a_gang_is_completed_once(open_store: Opener) -> None:
    stores = [open_store(), open_store()] * 2
    for _ in range(ROUNDS):
        job = place(stores[0], submit(stores[0]))
        results = _sound(at_once(*[lambda s=s, j=job: s.complete(j.key, NOW) for s in stores]))
        assert sorted(results) == [False, False, False, True]
        assert [d["kind"] for d in stores[0].directives(job.key, "n1", 0)] == ["launch"]


def test_the_last_two_that_join_or_leave_at_once_are_not_both_overlooked(open_store: Opener) -> None:
    stores = [open_store(), open_store()] * 2
    nodes = tuple(f"n{i}" for i in range(4))
    for _ in range(ROUNDS):
        job = place(stores[0], submit(stores[0]), nodes)
        pairs = list(zip(stores, nodes, strict=True))
        joined = _sound(at_once(*[lambda s=s, n=n, j=job: join(s, j.key, n) for s, n in pairs]))
        assert sorted(joined) == [False, False, False, True]
        done = _sound(at_once(*[lambda s=s, n=n, j=job: s.done(j.key, n, NOW) for s, n in pairs]))
        assert sorted(done) == [False, False, False, True]


def test_the_same_rank_events_told_to_two_servers_count_once(open_store: Opener) -> None:
    stores = [open_store(), open_store()] * 2
    for _ in range(ROUNDS):
        job = running(stores[0])
        events = [{"n": 1, "member": "worker-0", "event": "started", "pid": 1}]
        results = _sound(at_once(*[lambda s=s, j=job, e=events: s.rank_events(j.key, "n1", e, NOW) for s in stores]))
        assert sorted(results) == [False, False, False, True]


def test_who_follows_directives_by_number_misses_none(open_store: Opener) -> None:
    one, two, reader = open_store(), open_store(), open_store()
    first, second = running(one), running(one)
    start = reader.directives_since(0, 10)[-1][0]
    total = 100

    def write(store: Any, key: str) -> list[int]:
        return [store.direct(key, "stacks", {}, now=NOW) for _ in range(total // 2)]

    def follow() -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            seen += [seq for seq, _, _ in reader.directives_since(seen[-1] if seen else start, 1000)]
        return seen

    written, also_written, seen = _sound(at_once(lambda: write(one, first.key), lambda: write(two, second.key), follow))
    assert seen == sorted(written + also_written)


def test_everything_at_once_on_one_gang_does_not_deadlock(open_store: Opener) -> None:
    stores = [open_store(), open_store()]
    nodes = ("n1", "n2", "n3", "n4")
    job = running(stores[0], nodes)

    def tell(store: Any, rank: int) -> None:
        name = f"worker-{rank}"
        for n in range(1, 21):
            store.set_progress(job.key, {name: {"fraction": n / 20}, "worker-0": {"fraction": 0.1}}, NOW)
            store.rank_events(
                job.key, nodes[rank], [{"n": n, "member": name, "incarnation": n, "event": "started"}], NOW
            )
            store.touch([(job.key, node) for node in nodes], NOW + n)
            store.add_event(job.id, "note", "running", "", None, NOW)

    _sound(at_once(*[lambda s=stores[i % 2], i=i: tell(s, i) for i in range(4)]))
    assert [rank.incarnation for rank in stores[0].ranks(job.key)] == [20] * 4
