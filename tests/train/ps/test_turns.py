"""One act at a time, in the order they came; who comes alone acts itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from shoal.train.ps.turns import Turns


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    made = Turns("turns")
    made.start()
    yield made
    made.close()


def who() -> str:
    return threading.current_thread().name


def test_who_comes_alone_acts_itself_and_who_is_patient_never_does(turns: Turns) -> None:
    acted: list[str] = []
    assert turns.take(lambda: acted.append(who()))
    assert acted == [who()]
    done = threading.Event()
    assert turns.take(lambda: (acted.append(who()), done.set())[1], patient=True)
    assert done.wait(10) and acted[1] == "turns"


def test_where_torch_has_several_threads_one_thread_does_it_all(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    acted, done = list[str](), threading.Event()
    turns.take(lambda: (acted.append(who()), done.set())[1])
    assert done.wait(10) and acted == ["turns"]


def test_acts_come_one_at_a_time_and_none_is_lost(turns: Turns) -> None:
    inside, most, total = [0], [0], [0]

    def act() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.0001)
        total[0] += 1
        inside[0] -= 1

    threads = [threading.Thread(target=lambda: [turns.take(act) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns.close()
    assert (most[0], total[0]) == (1, 200)


def test_an_act_from_inside_an_act_comes_after_it(turns: Turns) -> None:
    acted, done = list[str](), threading.Event()

    def outer() -> None:
        turns.take(lambda: (acted.append("inner"), done.set())[1])
        acted.append("outer")

    turns.take(outer)
    assert done.wait(10) and acted == ["outer", "inner"]


def test_nothing_is_taken_when_all_is_over(turns: Turns) -> None:
    turns.close()
    assert not turns.take(lambda: None)
