"""The engine over groups of threads: every worker of a set in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from shoal.adapters.hvd.ask import ALLREDUCE, BARRIER, Ask
from shoal.adapters.hvd.engine import Engine
from shoal.adapters.hvd.errors import HorovodInternalError
from shoal.train.group.threads import ThreadGroup
from tests.train.ranks import run_ranks


class Gang:
    def __init__(self, size: int) -> None:
        self.groups = ThreadGroup.make(size)
        self.engines = [Engine(group, range(size), range(size), rank) for rank, group in enumerate(self.groups)]

    def run(self, work: Callable[[int, Engine], Any]) -> list[Any]:
        return run_ranks(len(self.engines), lambda rank: work(rank, self.engines[rank]))

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


@pytest.fixture(params=[1, 2, 3])
def gang(request: pytest.FixtureRequest) -> Iterator[Gang]:
    made = Gang(request.param)
    yield made
    made.close()


@pytest.fixture
def two() -> Iterator[Gang]:
    made = Gang(2)
    yield made
    made.close()


def summing(name: str, array: Any) -> tuple[Ask, list[Any]]:
    return Ask(ALLREDUCE, name, (array.dtype.name,), (array.shape,)), [array]


def test_operations_asked_for_in_opposite_orders_all_get_done(gang: Gang) -> None:
    names = [f"n{number}" for number in range(20)]

    def work(rank: int, engine: Engine) -> list[float]:
        order = names if rank == 0 else list(reversed(names))
        asked = {name: engine.ask(*summing(name, np.array([float(int(name[1:]) * (rank + 1))]))) for name in order}
        return [float(asked[name].result(20)[0][0]) for name in names]

    size = len(gang.engines)
    expected = [float(number * size * (size + 1) // 2) for number in range(20)]
    assert gang.run(work) == [expected] * size


def test_one_that_waits_for_its_first_does_not_hold_up_who_asked_for_both(two: Gang) -> None:
    def work(rank: int, engine: Engine) -> list[float]:
        if rank == 0:
            futures = [engine.ask(*summing(name, np.ones(3))) for name in ("a", "b")]
            return [float(future.result(20)[0][0]) for future in futures]
        return [float(engine.do(*summing(name, np.ones(3)))[0][0]) for name in ("b", "a")]

    assert two.run(work) == [[2.0, 2.0]] * 2


def test_small_and_large_sums_that_are_ready_together_stay_apart(two: Gang) -> None:
    sizes = [1, 1000, 500_000, 7, 300_000]

    def work(rank: int, engine: Engine) -> bool:
        arrays = [np.full(size, float(number * 10 + rank), np.float32) for number, size in enumerate(sizes)]
        futures = [engine.ask(*summing(f"n{number}", array)) for number, array in enumerate(arrays)]
        for future in futures:
            future.result(20)
        return all((array == number * 20 + 1).all() for number, array in enumerate(arrays))

    assert two.run(work) == [True, True]


def test_threads_of_one_worker_may_ask_at_the_same_time(two: Gang) -> None:
    def work(rank: int, engine: Engine) -> list[float]:
        found: dict[int, float] = {}

        def one(number: int) -> None:
            for step in range(20):
                found[number] = float(engine.do(*summing(f"{number}.{step}", np.ones(2)))[0][0])

        threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return list(found.values())

    assert two.run(work) == [[2.0] * 3] * 2


def test_different_shapes_fail_on_all_and_the_next_operation_works(two: Gang) -> None:
    def work(rank: int, engine: Engine) -> float:
        with pytest.raises(HorovodInternalError, match="worker-0 asks for allreduce 'a' with shapes"):
            engine.do(*summing("a", np.ones(2 + rank)))
        return float(engine.do(*summing("a", np.ones(2)))[0][0])

    assert two.run(work) == [2.0, 2.0]


def test_a_name_in_use_is_refused(two: Gang) -> None:
    engine = two.engines[0]
    engine.ask(*summing("a", np.ones(2)))
    with pytest.raises(HorovodInternalError, match="'a' is asked for again"):
        engine.ask(*summing("a", np.ones(2)))


def test_who_waits_for_one_that_left_is_told_its_name(two: Gang) -> None:
    waiting = two.engines[0].ask(Ask(BARRIER, "b"))
    two.engines[1].close()
    with pytest.raises(HorovodInternalError, match="worker-1 has shut Horovod down"):
        waiting.result(20)
    with pytest.raises(HorovodInternalError, match="worker-1"):
        two.engines[0].ask(Ask(BARRIER, "c"))


def test_who_waits_for_one_that_died_is_told_its_name(two: Gang) -> None:
    waiting = two.engines[0].ask(Ask(BARRIER, "b"))
    two.groups[1].die()
    with pytest.raises(HorovodInternalError, match="worker-1 died"):
        waiting.result(20)
    assert two.engines[0].lost is not None


def test_after_close_nothing_is_taken(gang: Gang) -> None:
    gang.close()
    for engine in gang.engines:
        with pytest.raises(HorovodInternalError, match="shut down"):
            engine.ask(Ask(BARRIER, "b"))
