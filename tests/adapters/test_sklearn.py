"""joblib over real workers: this process is the chief."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from joblib import Parallel, delayed

import shoal.joblib
from shoal import contract
from shoal._lib.ports import free_ports
from shoal.adapters.sklearn import backend
from shoal.adapters.sklearn.desk import TASKS, TaskLost, WorkerTraceback
from shoal.contract import Member, Roster
from shoal.errors import NotAllowed
from shoal.train.wire.link import Link
from tests.support.live import eventually

SECRET = "of-this-attempt"

pytestmark = [pytest.mark.real]


class Gang:
    """A chief (this process) and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roster = folder / "roster.json"
        self.port = free_ports(1)[0]
        self.workers: list[subprocess.Popen[bytes]] = []

    def begin(self, count: int) -> None:
        chief = Member("chief-0", "chief", 0, "here", "127.0.0.1", {"tasks": self.port})
        others = [Member(f"worker-{number}", "worker", number, "here", "127.0.0.1", {}) for number in range(count)]
        self.roster.write_text(Roster(1, "j-1", [chief, *others]).to_json())
        self.workers = [self.start(number) for number in range(count)]

    def start(self, number: int) -> subprocess.Popen[bytes]:
        told = {contract.MEMBER: f"worker-{number}", contract.ROSTER: str(self.roster), contract.SECRET: SECRET}
        environment = {**os.environ, **told, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "shoal.adapters.sklearn", "--worker"]
        return subprocess.Popen(words, cwd=self.folder, env=environment)

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Gang]]:
    made = Gang(tmp_path)
    told = {contract.MEMBER: "chief-0", contract.ROSTER: str(made.roster), contract.SECRET: SECRET}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(backend, "_office", None)

    def begin(count: int) -> Gang:
        made.begin(count)
        return made

    with joblib.parallel_config(backend="shoal"):
        yield begin
    if backend._office is not None:
        backend._office.close()
    made.end()


def who(_number: int) -> int:
    return os.getpid()


def test_results_come_in_order_and_every_worker_has_a_part(gang: Callable[[int], Gang], tmp_path: Path) -> None:
    begun = gang(2)

    def meet(number: int) -> tuple[int, int]:
        """The first two tasks wait for each other, so that no worker can do both."""
        (tmp_path / f"came-{number}").touch()
        eventually(lambda: number > 1 or all((tmp_path / f"came-{each}").exists() for each in (0, 1)))
        return number, os.getpid()

    found = Parallel(n_jobs=-1, batch_size=1)(delayed(meet)(number) for number in range(20))
    assert [number for number, _ in found] == list(range(20))
    assert {pid for _, pid in found} == {worker.pid for worker in begun.workers}


@pytest.mark.parametrize("way", ["generator", "generator_unordered"])
def test_results_may_come_as_a_generator(gang: Callable[[int], Gang], way: str) -> None:
    gang(2)
    found = Parallel(n_jobs=-1, return_as=way)(delayed(pow)(number, 2) for number in range(30))
    assert not isinstance(found, list)
    assert sorted(found) == [number**2 for number in range(30)]


def test_two_generators_under_way_at_once_do_not_end_each_other(gang: Callable[[int], Gang]) -> None:
    gang(2)
    first = Parallel(n_jobs=-1, return_as="generator", batch_size=1)(delayed(abs)(-number) for number in range(20))
    assert next(first) == 0
    with pytest.raises(ZeroDivisionError):
        list(Parallel(n_jobs=-1, return_as="generator")(delayed(divmod)(1, 0) for _ in range(4)))
    assert list(first) == list(range(1, 20))


def test_an_exception_comes_back_with_the_workers_traceback(gang: Callable[[int], Gang]) -> None:
    gang(2)

    def fall(number: int) -> int:
        if number == 3:
            raise KeyError("three")
        return number

    with pytest.raises(KeyError, match="three") as caught:
        Parallel(n_jobs=-1)(delayed(fall)(number) for number in range(8))
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert 'raise KeyError("three")' in str(caught.value.__cause__)
    assert "adapters/sklearn/worker.py" not in str(caught.value.__cause__)
    assert Parallel(n_jobs=-1)(delayed(fall)(number) for number in range(3)) == [0, 1, 2]


def test_an_exception_that_cannot_travel_comes_as_its_words(gang: Callable[[int], Gang]) -> None:
    gang(2)

    def fall() -> None:
        class Odd(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__(f"{one} and {two}")
                self.lock = threading.Lock()

        raise Odd(1, 2)

    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
        Parallel(n_jobs=-1)(delayed(fall)() for _ in range(2))


def test_what_cannot_be_pickled_is_said_at_once(gang: Callable[[int], Gang]) -> None:
    gang(2)
    with pytest.raises(Exception, match="cannot be sent to a worker"):
        Parallel(n_jobs=-1)(delayed(id)(threading.Lock()) for _ in range(2))


def test_the_tasks_of_a_killed_worker_are_done_by_others(gang: Callable[[int], Gang], tmp_path: Path) -> None:
    begun = gang(2)

    def die_once(number: int) -> int:
        with (tmp_path / f"done-{number}").open("a") as file:
            file.write("x")
        if number == 2 and len((tmp_path / "done-2").read_text()) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    found = Parallel(n_jobs=-1, batch_size=1)(delayed(die_once)(number) for number in range(10))
    assert found == list(range(10))
    assert [len((tmp_path / f"done-{number}").read_text()) for number in range(10)] == [1, 1, 2, *[1] * 7]
    assert sorted(worker.poll() is None for worker in begun.workers) == [False, True]


def test_a_worker_that_comes_back_is_given_work_again(gang: Callable[[int], Gang]) -> None:
    begun = gang(2)
    assert len(set(Parallel(n_jobs=-1)(delayed(who)(number) for number in range(9)))) <= 2
    for number, worker in enumerate(begun.workers):
        worker.kill()
        worker.wait()
        begun.workers[number] = begun.start(number)
    after = set(Parallel(n_jobs=-1)(delayed(who)(number) for number in range(9)))
    assert after <= {worker.pid for worker in begun.workers}


def test_a_task_that_kills_its_workers_fails_and_does_not_take_them_all(gang: Callable[[int], Gang]) -> None:
    gang(4)

    def deadly(number: int) -> int:
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with pytest.raises(TaskLost, match="given up"):
        Parallel(n_jobs=-1, batch_size=1)(delayed(deadly)(number) for number in range(4))


def test_a_large_array_goes_to_each_worker_once_and_cannot_be_written(gang: Callable[[int], Gang]) -> None:
    gang(2)
    data = np.arange(1_000_000, dtype=np.float64)

    def part(whole: np.ndarray, number: int) -> tuple[float, bool]:
        return float(whole[number]), whole.flags.writeable

    found = Parallel(n_jobs=-1, batch_size=1)(delayed(part)(data, number) for number in range(20))
    assert found == [(float(number), False) for number in range(20)]
    office = backend.office()
    assert office is not None
    assert data.nbytes <= office.desk.bytes_sent <= 2 * data.nbytes + 20 * 10_000
    before = office.desk.bytes_sent
    Parallel(n_jobs=-1, batch_size=1)(delayed(part)(data.copy(), number) for number in range(4))
    assert office.desk.bytes_sent - before < data.nbytes + 4 * 10_000  # at most the worker that had had no task


def test_an_array_written_between_two_calls_arrives_as_it_is_then(gang: Callable[[int], Gang]) -> None:
    gang(2)
    data = np.zeros(1_000_000)
    for number in range(3):
        data[:] = number
        assert Parallel(n_jobs=-1)(delayed(np.sum)(data) for _ in range(2)) == [number * 1e6] * 2


def test_small_arrays_are_the_tasks_own(gang: Callable[[int], Gang]) -> None:
    gang(2)
    data = np.ones(10_000)

    def write(own: np.ndarray) -> float:
        own += 1
        return float(own.sum())

    assert Parallel(n_jobs=-1, batch_size=1)(delayed(write)(data) for _ in range(8)) == [20_000.0] * 8
    large = np.ones(1_000_000)
    assert Parallel(n_jobs=-1, mmap_mode="c", batch_size=1)(delayed(write)(large) for _ in range(4)) == [2e6] * 4


def test_a_call_that_takes_too_long_is_left_and_the_worker_goes_on_with_the_next(
    gang: Callable[[int], Gang], tmp_path: Path
) -> None:
    begun = gang(2)

    def wait_for_ever() -> None:
        eventually((tmp_path / "never").exists, 100)

    with pytest.raises(multiprocessing.TimeoutError):
        Parallel(n_jobs=-1, timeout=2)(delayed(wait_for_ever)() for _ in range(2))
    pids = set(Parallel(n_jobs=-1)(delayed(who)(number) for number in range(4)))
    assert pids <= {worker.pid for worker in begun.workers}


def test_a_task_that_does_not_listen_is_left_by_beginning_anew(gang: Callable[[int], Gang], tmp_path: Path) -> None:
    begun = gang(2)

    def deaf() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        (tmp_path / f"deaf-{os.getpid()}").touch()
        eventually((tmp_path / "never").exists, 100)

    with pytest.raises(multiprocessing.TimeoutError):
        Parallel(n_jobs=-1, timeout=3)(delayed(deaf)() for _ in range(2))
    assert len(list(tmp_path.glob("deaf-*"))) == 2
    pids = set(Parallel(n_jobs=-1)(delayed(who)(number) for number in range(4)))
    assert pids <= {worker.pid for worker in begun.workers}


def test_ctrl_c_ends_the_call_and_nothing_else(gang: Callable[[int], Gang], tmp_path: Path) -> None:
    gang(2)

    def wait_for_ever(number: int) -> None:
        (tmp_path / f"began-{number}").touch()
        eventually((tmp_path / "never").exists, 100)

    def interrupt() -> None:
        eventually((tmp_path / "began-1").exists)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Parallel(n_jobs=-1)(delayed(wait_for_ever)(number) for number in range(2))
    thread.join()
    assert Parallel(n_jobs=-1)(delayed(abs)(-number) for number in range(4)) == [0, 1, 2, 3]


def test_what_is_parallel_within_a_task_stays_in_its_worker(gang: Callable[[int], Gang]) -> None:
    gang(2)

    def nested() -> tuple[int, set[int]]:
        return os.getpid(), set(Parallel(n_jobs=2)(delayed(who)(number) for number in range(4)))

    for pid, inner in Parallel(n_jobs=-1)(delayed(nested)() for _ in range(4)):
        assert inner == {pid}


def test_numbers_of_jobs_count_the_workers(gang: Callable[[int], Gang]) -> None:
    gang(3)
    assert [joblib.effective_n_jobs(asked) for asked in (-1, -2, 2, 16, 1)] == [3, 2, 2, 3, 1]
    assert Parallel(n_jobs=1)(delayed(who)(0) for _ in range(2)) == [os.getpid()] * 2


def test_modules_beside_the_script_are_found_by_the_workers(
    gang: Callable[[int], Gang], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang(2)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "beside_the_script.py").write_text("def three(): return 3\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    import beside_the_script  # type: ignore[import-not-found]

    assert Parallel(n_jobs=-1)(delayed(beside_the_script.three)() for _ in range(2)) == [3, 3]


def test_workers_go_home_when_the_script_has_ended(gang: Callable[[int], Gang]) -> None:
    begun = gang(2)
    assert Parallel(n_jobs=-1)(delayed(abs)(-1) for _ in range(4)) == [1] * 4
    office = backend.office()
    assert office is not None
    eventually(lambda: office._host.seen == {"worker-0", "worker-1"})
    office.close()
    assert [worker.wait(60) for worker in begun.workers] == [0, 0]


def test_a_stranger_gets_no_task(gang: Callable[[int], Gang]) -> None:
    begun = gang(1)
    assert backend.office() is not None
    with pytest.raises(NotAllowed):
        Link.open("127.0.0.1", begun.port, b"a guess", service=TASKS, me="worker-0", deadline=5)


def test_alone_it_is_loky_with_a_note(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in (contract.ROSTER, contract.SECRET, contract.MEMBER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(backend, "_office", None)
    backend._note_alone.cache_clear()
    shoal.joblib.register()
    with caplog.at_level(logging.WARNING), joblib.parallel_config(backend="shoal"):
        found: list[Any] = Parallel(n_jobs=2)(delayed(who)(number) for number in range(2))
    assert os.getpid() not in found
    assert "has no workers" in caplog.text and "--framework sklearn" in caplog.text
