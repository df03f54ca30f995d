"""The account of a step, and who comes late."""

from __future__ import annotations

import pytest

from shoal.train.seeing import DATA, EXCHANGE, Seeing, between


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_was_not_spent_elsewhere_was_computed() -> None:
    clock = Clock()
    seeing = Seeing(clock=clock)
    clock.now += 50  # before training
    seeing.begin()
    with seeing.spending(DATA):
        clock.now += 1
    clock.now += 4
    with seeing.spending(EXCHANGE):
        clock.now += 2
    with seeing.waiting_for("worker-1"):
        assert seeing.waiting == "worker-1"
        clock.now += 3
    seeing.close_step()
    spent = seeing.total()
    assert (spent.compute, spent.data, spent.exchange, spent.wait) == (4, 1, 2, 3)
    assert seeing.waiting == ""


def test_between_two_totals_lies_what_happened_since() -> None:
    clock = Clock()
    seeing = Seeing(clock=clock)
    seeing.begin()
    seeing.sent(10, 20)
    seeing.stale(1)
    before = seeing.total()
    clock.now += 2
    seeing.close_step()
    seeing.sent(5, 6)
    seeing.stale(1)
    seeing.stale(3)
    spent = between(before, seeing.total())
    assert (spent.steps, spent.seconds, spent.compute, spent.sent, spent.received) == (1, 2, 2, 5, 6)
    assert spent.staleness == {1: 1, 3: 1}


def test_an_exchange_that_overlaps_never_makes_compute_negative() -> None:
    clock = Clock()
    seeing = Seeing(clock=clock)
    seeing.begin()
    seeing.seconds[EXCHANGE] += 10
    clock.now += 1
    seeing.close_step()
    assert seeing.total().compute == 0


def test_the_straggler_is_the_one_who_arrives_last_again_and_again() -> None:
    clock = Clock()
    seeing = Seeing(clock=clock)
    seeing.begin()
    for _ in range(20):
        for peer, late in (("worker-0", 0.0), ("worker-1", 0.01), ("worker-2", 0.4)):
            seeing.arrivals[peer] = clock.now + late
        clock.now += 1
        seeing.close_step()
    assert seeing.straggler() == ("worker-2", pytest.approx(0.4))


def test_nobody_is_a_straggler_when_all_come_about_together() -> None:
    clock = Clock()
    seeing = Seeing(clock=clock)
    seeing.begin()
    for step in range(20):
        for number in range(3):
            seeing.arrivals[f"worker-{number}"] = clock.now + ((step + number) % 3) * 0.3
        clock.now += 1
        seeing.close_step()
    assert seeing.straggler() is None


def test_lateness_at_every_exchange_of_a_step_counts() -> None:
    """One is late with its batch, the other computes slowly: both hold the step up, by what each adds."""
    clock = Clock()
    seeing = Seeing(clock=clock)
    seeing.begin()
    for _ in range(50):
        for exchange in ({"worker-0": 0.0, "worker-1": 0.1}, {"worker-1": 0.2, "worker-0": 0.6}):
            for peer, late in exchange.items():
                seeing.arrivals[peer] = clock.now + late
        clock.now += 1
        seeing.close_step()
    assert seeing.lateness == {"worker-0": pytest.approx(0.4), "worker-1": pytest.approx(0.1)}
    assert seeing.straggler() == ("worker-0", pytest.approx(0.4))


def test_who_held_the_server_up_is_named() -> None:
    clock = Clock()
    seeing = Seeing(clock=clock)
    seeing.begin()
    for _ in range(5):
        seeing.held_up("worker-2", 0.5)
        clock.now += 1
        seeing.close_step()
    assert seeing.straggler() == ("worker-2", pytest.approx(0.5))


def test_a_wait_in_the_middle_of_an_exchange_counts_once() -> None:
    clock = Clock()
    seeing = Seeing(clock=clock)
    seeing.begin()
    with seeing.spending(EXCHANGE):
        clock.now += 1
        with seeing.waiting_for("worker-1"):
            clock.now += 2
        clock.now += 4
        with seeing.waiting_for("worker-2"):
            clock.now += 8
    clock.now += 16
    seeing.close_step()
    spent = seeing.total()
    assert (spent.exchange, spent.wait, spent.compute) == (5, 10, 16)
