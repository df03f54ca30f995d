"""When to stop: the signal, and the agreement of workers that go in step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.train.stop import PERIOD, Stop


@pytest.fixture(autouse=True)
def own_signal() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Pair:
    """The gather of two workers, played in turn: the other's words are given beforehand."""

    def __init__(self, others: list[list[int]]) -> None:
        self.others, self.told = others, list[Any]()

    def gather(self, value: Any) -> list[Any]:
        self.told.append(value)
        return [value, self.others.pop(0)]


def test_nobody_asked() -> None:
    stop = Stop()
    assert not stop()
    stop.close()


def test_the_first_signal_sets_the_flag_and_calls_the_scripts_own_handler() -> None:
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    stop = Stop()
    assert not stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop()
    assert seen == [signal.SIGTERM]
    stop.close()


def test_a_script_that_never_asks_keeps_its_signal() -> None:
    before = signal.getsignal(signal.SIGTERM)
    Stop()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_signal_is_given_back_at_the_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = Stop()
    stop()
    assert signal.getsignal(signal.SIGTERM) is not before
    stop.close()
    assert signal.getsignal(signal.SIGTERM) is before
    stop.close()


def test_another_thread_may_ask_but_not_take_the_signal() -> None:
    answers = list[bool]()
    thread = threading.Thread(target=lambda: answers.append(Stop()()))
    thread.start()
    thread.join(10)
    assert answers == [False]


def test_one_that_was_told_stops_all() -> None:
    group = Pair([[1, 1]])
    stop = Stop(lambda: group)  # type: ignore[arg-type,return-value]
    assert stop()
    assert group.told == [[0, 1]]
    stop.close()


def test_what_one_was_told_is_not_followed_before_the_others_know() -> None:
    group = Pair([[0, 5]])
    stop = Stop(lambda: group)  # type: ignore[arg-type,return-value]
    stop()
    stop.asked = True
    stop._next = stop._calls + 2
    assert not stop()
    group.others = [[0, 1]]
    assert stop()
    stop.close()


def test_many_quick_calls_agree_only_now_and_then() -> None:
    now = [0.0]
    group = Pair([[0, 1]] * 1000)
    stop = Stop(lambda: group, clock=lambda: now[0])  # type: ignore[arg-type,return-value]
    for _ in range(1000):
        stop()
        now[0] += PERIOD / 100
    assert 10 <= len(group.told) <= 20
    stop.close()
