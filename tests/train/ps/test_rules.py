"""What every rule promises, whatever the schedule: nobody is counted twice, nobody waits for ever or for the dead."""

from __future__ import annotations

from math import ceil, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.strategy import parse
from shoal.train.ps import rules
from shoal.train.ps.orders import Answer, Apply, Drop, Hold, Resume
from tests.train.ps.drive import ANYTHING, FINISHES, Drive

Schedule = list[tuple[str, int]]

EVERY = [
    "ps-sync", "ps-sync:backup=1", "ps-async", "ps-async:scale=inverse", "ps-softsync", "ps-softsync:n=2",
    "ps-softsync:c=3,scale=poly", "ps-softsync:c=2,late=drop", "ps-softsync:c=2,distinct=true",
    "ps-softsync:c=9,distinct=true", "ps-softsync:c=2,distinct=true,late=drop", "ps-ssp:staleness=0",
    "ps-ssp:staleness=1", "ps-ssp:staleness=3,scale=hinge", "easgd",
]  # fmt: skip
WORKERS = st.integers(1, 6)


def played(text: str, workers: int, schedule: Schedule) -> Drive:
    drive = Drive.of(text, workers)
    for what, number in schedule:
        drive.play(what, number)
    return drive


@pytest.mark.parametrize("text", EVERY)
@settings(max_examples=40)
@given(workers=WORKERS, schedule=ANYTHING)
def test_every_push_counts_at_most_once_and_somebody_can_always_go_on(
    text: str, workers: int, schedule: Schedule
) -> None:
    drive = Drive.of(text, workers)
    for what, number in schedule:
        drive.play(what, number)
        assert set(drive.taken.values()) <= {1}
        assert drive.computing, "all wait for each other"
        waits = drive.rule.waits()
        assert sorted(waits) == drive.blocked
        for worker, missing in waits.items():
            assert missing and worker not in missing, "a wait without an end"
            assert set(missing) <= set(drive.rule.members) == set(drive.workers)


@pytest.mark.parametrize("text", [one for one in EVERY if "drop" not in one and "backup" not in one])
@settings(max_examples=30)
@given(workers=WORKERS, schedule=FINISHES)
def test_every_push_that_was_answered_counts_exactly_once(text: str, workers: int, schedule: Schedule) -> None:
    drive = played(text, workers, schedule)
    for worker, one in drive.workers.items():
        answered = one.seq if not one.waiting else drive.rule.seqs.get(worker, 0)
        assert [drive.taken[worker, seq] for seq in range(1, answered + 1)] == [1] * answered
    assert not drive.dropped


@pytest.mark.parametrize("text", EVERY)
def test_a_push_sent_again_after_its_answer_was_lost_is_answered_and_not_taken(text: str) -> None:
    drive = Drive.of(text, 1)
    drive.finish(0)
    orders = drive.again(0)
    assert [type(order) for order in orders] == [Answer]


# Hardsync.


@settings(max_examples=60)
@given(workers=WORKERS, schedule=FINISHES)
def test_hardsync_takes_one_fresh_push_of_everybody_per_version(workers: int, schedule: Schedule) -> None:
    drive = Drive.of("ps-sync", workers)
    for what, number in schedule:
        version, before = drive.version, set(drive.computing)
        drive.play(what, number)
        if drive.version == version:
            assert set(drive.computing) <= before, "began the next version before it existed"
        else:
            assert drive.computing == list(range(workers))
    for update in drive.updates:
        assert [one.worker for one in update.contributions] == list(range(workers))
        assert {(one.tau, one.weight) for one in update.contributions} == {(0, 1.0)}
        assert (update.divisor, update.scale, update.held) == (workers, 1.0, 0)
    assert drive.received == workers * drive.version + len(drive.blocked)


def test_hardsync_names_who_is_missing_and_who_ended_the_wait() -> None:
    drive = Drive.of("ps-sync", 3)
    drive.finish(2)
    drive.finish(0)
    assert drive.rule.waits() == {0: (1,), 2: (1,)}
    answers = [order for order in drive.finish(1) if isinstance(order, Answer)]
    assert [(one.worker, one.released_by) for one in answers] == [(0, 1), (1, None), (2, 1)]


def test_hardsync_goes_on_without_the_dead_and_forgets_what_they_left_in_their_slots() -> None:
    drive = Drive.of("ps-sync", 3)
    drive.finish(0)
    drive.finish(1)
    drive.die(0)
    assert drive.version == 0
    (update, *_) = drive.die(2)
    assert isinstance(update, Apply) and [one.worker for one in update.contributions] == [1] and update.divisor == 1


def test_hardsync_waits_for_workers_that_have_not_come_yet() -> None:
    rule = rules.Sync(2)
    rule.join(0)
    assert rule.push(0, 1, 0, 1) == []
    assert rule.waits() == {0: (1,)}
    assert [type(order) for order in rule.leave(1)] == [Apply, Answer], "one that never came was told to be gone"


@settings(max_examples=60)
@given(workers=st.integers(2, 6), backup=st.integers(1, 3), schedule=FINISHES)
def test_backup_workers_are_not_waited_for(workers: int, backup: int, schedule: Schedule) -> None:
    drive = played(f"ps-sync:backup={backup}", workers, schedule)
    enough = max(1, workers - backup)
    for update in drive.updates:
        who = [one.worker for one in update.contributions]
        assert len(who) == len(set(who)) == enough == update.divisor and who == sorted(who)
        assert {one.tau for one in update.contributions} == {0}
    assert all(one.tau > 0 for one in drive.dropped), "only what came too late is dropped"
    assert len(drive.blocked) < enough
    assert drive.received == enough * drive.version + len(drive.dropped) + len(drive.blocked)


# Softsync.


@settings(max_examples=80)
@given(workers=st.integers(1, 8), c=st.integers(1, 8), schedule=FINISHES)
def test_softsync_counts_and_conserves(workers: int, c: int, schedule: Schedule) -> None:
    drive = Drive.of(f"ps-softsync:c={c}", workers)
    for what, number in schedule:
        version, held = drive.version, len(drive.held)
        drive.play(what, number)
        assert drive.received == c * drive.version + len(drive.held) and 0 <= len(drive.held) < c
        assert drive.version - version == (1 if held == c - 1 else 0), "only the c-th moves the version, by one"
        assert not drive.blocked
        assert drive.consumed + drive.inflight() == (workers - 1) * drive.version
    for update in drive.updates:
        assert update.held + len(update.contributions) == c and (update.divisor, update.scale) == (c, 1.0)
        assert all(one.tau >= 0 for one in update.contributions)


@pytest.mark.parametrize(("workers", "c"), [(8, 1), (8, 2), (8, 3), (8, 4), (8, 8), (5, 2), (30, 2), (30, 1), (30, 30)])
def test_softsync_in_turn_has_the_staleness_it_should(workers: int, c: int) -> None:
    drive = Drive.of(f"ps-softsync:c={c}", workers)
    seen = set()
    for turn in range(12 * workers):
        tau = drive.version - drive.workers[turn % workers].base
        if turn >= workers * (1 + c):
            seen.add(tau)
        drive.finish(turn % workers)
    assert seen <= {floor((workers - 1) / c), ceil((workers - 1) / c)}


def test_softsync_n_is_an_alias_and_follows_the_members() -> None:
    drive = Drive.of("ps-softsync:n=2", 6)
    assert isinstance(drive.rule, rules.SoftSync) and drive.rule.c == 3
    drive.finish(0)
    drive.finish(0)
    assert len(drive.held) == 2
    drive.die(5)  # five members: c = 2, and two are held already
    assert drive.version == 1 and drive.updates[0].held == 2 and drive.updates[0].contributions == ()
    assert parse("ps-softsync").options["c"] == 0
    assert Drive.of("ps-softsync", 4).rule.c == 4  # type: ignore[attr-defined]


def test_softsync_scales_each_change_by_its_own_staleness() -> None:
    drive = Drive.of("ps-softsync:c=2,scale=inverse", 3)
    for _ in range(4):
        drive.finish(0)
        drive.finish(0)
    drive.finish(0)
    drive.finish(1)  # computed on version 0, lands at 4
    update = drive.updates[-1]
    assert [one.tau for one in update.contributions] == [4]
    assert (update.contributions[0].weight, update.held, update.divisor, update.scale) == (0.25, 1, 1.25, 0.625)


def test_late_gradients_are_dropped_if_asked_and_their_worker_goes_on() -> None:
    drive = Drive.of("ps-softsync:c=1,late=drop", 2)
    drive.finish(0)
    orders = drive.finish(1)
    assert [type(order) for order in orders] == [Drop, Answer] and orders[1].dropped  # type: ignore[union-attr]
    assert drive.workers[1].base == 1


@settings(max_examples=60)
@given(workers=st.integers(1, 6), c=st.integers(1, 8), schedule=FINISHES)
def test_distinct_counts_each_worker_once_in_an_update(workers: int, c: int, schedule: Schedule) -> None:
    drive = played(f"ps-softsync:c={c},distinct=true", workers, schedule)
    for update in drive.updates:
        who = [one.worker for one in update.contributions]
        assert len(who) == len(set(who)) == min(c, workers) and who == sorted(who)


# Downpour and SSP.


@settings(max_examples=40)
@given(workers=WORKERS, schedule=FINISHES)
def test_downpour_softsync_of_n_workers_and_endless_ssp_give_the_same_orders(workers: int, schedule: Schedule) -> None:
    kinds = ("ps-async", "ps-softsync:c=1", "ps-ssp:staleness=1000000")
    orders = [played(text, workers, schedule).updates for text in kinds]
    assert orders[0] == orders[1] == orders[2]


@settings(max_examples=60)
@given(workers=st.integers(1, 6), bound=st.integers(1, 4), schedule=ANYTHING)
def test_ssp_bounds_how_far_anybody_is_ahead(workers: int, bound: int, schedule: Schedule) -> None:
    drive = Drive.of(f"ps-ssp:staleness={bound}", workers)
    for what, number in schedule:
        drive.play(what, number)
        clocks = {worker: one.clock for worker, one in drive.workers.items()}
        slowest = min(clocks.values())
        assert all(clocks[worker] - slowest <= bound for worker in drive.computing), "I1"
        assert all(clocks[worker] - slowest == bound + 1 for worker in drive.blocked), "I1, I8"
        assert all(worker in drive.computing for worker, clock in clocks.items() if clock == slowest), "I4"


@settings(max_examples=60)
@given(workers=st.integers(1, 6), bound=st.integers(1, 4), schedule=FINISHES)
def test_ssp_readers_see_everything_old_enough_and_their_own_writes(
    workers: int, bound: int, schedule: Schedule
) -> None:
    drive = Drive.of(f"ps-ssp:staleness={bound}", workers)
    for what, number in schedule:
        drive.play(what, number)
        for reader in drive.computing:
            one = drive.workers[reader]
            for other in drive.workers:
                owed = set(range(1, (one.clock if other == reader else one.clock - bound) + 1))
                assert owed <= one.seen.get(other, frozenset()), "I2, I3"


def test_ssp_the_dead_leave_the_minimum_and_a_joiner_starts_there() -> None:
    drive = Drive.of("ps-ssp:staleness=1", 3)
    for _ in range(2):
        drive.finish(0)
        drive.finish(1)
    assert drive.blocked == [0, 1] and drive.rule.waits() == {0: (2,), 1: (2,)}
    answers = drive.die(2)
    assert [order.worker for order in answers] == [0, 1]  # type: ignore[union-attr]
    drive.finish(0)
    drive.finish(0)
    drive.join(5)
    assert drive.workers[5].clock == drive.rule.minimum == 2, "never lower"
    drive.finish(1)
    assert drive.blocked == [0], "the joiner counts"


def test_ssp_a_joiner_in_an_empty_world_does_not_start_over() -> None:
    drive = Drive.of("ps-ssp:staleness=1", 1)
    for _ in range(5):
        drive.finish(0)
    drive.rule.leave(0)
    drive.rule.join(3)
    assert drive.rule.clocks == {3: 5}


def test_ssp_one_that_was_lost_for_a_moment_keeps_its_clock() -> None:
    rule = rules.StaleSync(2, 1)
    rule.push(0, 1, 0, 1)
    rule.leave(0)
    rule.join(0, clock=1)
    assert rule.clocks == {0: 1, 1: 0}


def test_ssp_asking_waits_by_the_same_rule() -> None:
    rule = rules.StaleSync(2, 1)
    assert rule.ask(0, 1) == [Answer(0)]
    assert rule.ask(0, 2) == []
    assert rule.push(1, 1, 0, 1)[1:] == [Answer(0, released_by=1), Answer(1, 1)]


@settings(max_examples=60)
@given(workers=WORKERS, schedule=FINISHES)
def test_ssp_zero_applies_a_clock_at_once_with_full_weight(workers: int, schedule: Schedule) -> None:
    drive = played("ps-ssp:staleness=0", workers, schedule)
    for clock, update in enumerate(drive.updates, 1):
        assert [(one.worker, one.clock, one.tau) for one in update.contributions] == [
            (w, clock, 0) for w in range(workers)
        ]
        assert (update.divisor, update.scale) == (1.0, 1.0)


# After a restart.


@pytest.mark.parametrize("text", EVERY)
@settings(max_examples=25)
@given(workers=WORKERS, schedule=FINISHES, more=FINISHES)
def test_a_rule_goes_on_from_what_the_shard_remembers(
    text: str, workers: int, schedule: Schedule, more: Schedule
) -> None:
    whole, cut = played(text, workers, schedule), played(text, workers, schedule)
    strategy = parse(text)
    clocks = {worker: one.clock for worker, one in cut.workers.items()}
    if isinstance(cut.rule, rules.Gathering):  # what waits in slots was not taken: its workers send it again
        clocks = {worker: clock - (worker in cut.blocked) for worker, clock in clocks.items()}
    weight = sum(one.weight for one in cut.held)
    resume = Resume(cut.version, dict(cut.rule.seqs), clocks, len(cut.held), weight)
    cut.rule = rules.make(strategy.name, strategy.options, workers, resume)
    for worker in list(cut.blocked):
        cut.again(worker)
    for what, number in more:
        whole.play(what, number)
        cut.play(what, number)
    assert cut.updates == whole.updates and cut.taken == whole.taken and cut.blocked == whole.blocked


def test_names_without_servers_are_refused() -> None:
    with pytest.raises(ValueError, match="no parameter servers"):
        rules.make("allreduce", {}, 2)


def test_elastic_force_defaults_to_the_papers() -> None:
    drive = Drive.of("easgd", 3)
    drive.finish(1)
    assert drive.updates[0].scale == pytest.approx(0.3)
    assert Drive.of("easgd:alpha=0.5", 3).finish(0)[0].scale == 0.5  # type: ignore[union-attr]


def test_holding_answers_at_once() -> None:
    assert [type(order) for order in Drive.of("ps-softsync:c=2", 2).finish(0)] == [Hold, Answer]
