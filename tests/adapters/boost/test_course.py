"""What happens after each round: agreed, told, kept, and taken up again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.adapters.boost.course import Course
from shoal.adapters.boost.keeper import Keeper
from shoal.adapters.boost.scores import Score
from shoal.adapters.boost.task import Task
from shoal.adapters.meeting import Meeting
from tests.adapters.worlds import meet


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_JOB", "j1")


def valid(value: float) -> list[Score]:
    return [Score("valid", "logloss", value, False)]


def test_all_workers_stop_in_the_same_round_though_only_one_sees_it_get_worse(tmp_path: Path) -> None:
    task = Task((Path("x"),), share=0.5, rounds=50, early_stopping=2)

    def work(meeting: Meeting) -> tuple[int, int, bool]:
        course = Course(task, meeting, Keeper(tmp_path))
        while not course.after(valid(course.done if meeting.rank else 1.0), lambda: b"m"):
            pass
        return course.done, course.best, course.early

    assert meet(2, work) == [(3, 1, True)] * 2


def test_lines_are_progress_that_a_shepherd_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.shepherd.progress import parse

    def work(meeting: Meeting) -> bool:
        return Course(Task((Path("x"),), rounds=1), meeting, Keeper(tmp_path)).after(valid(0.25), lambda: b"")

    assert meet(1, work) == [True]
    facts = parse(capsys.readouterr().out.strip().encode())
    assert facts == {"done": 1, "total": 1, "fraction": 1.0, "valid-logloss": 0.25}


def test_a_later_attempt_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    task = Task((Path("x"),), share=0.5, rounds=10, early_stopping=5, every=2)

    def fall(meeting: Meeting) -> None:
        course = Course(task, meeting, Keeper(tmp_path))
        for _ in range(5):
            course.after(valid(1.0 / (course.done + 1)), lambda: b"model of %d" % course.done)

    def again(meeting: Meeting) -> tuple[bytes, int, int, int]:
        course = Course(task, meeting, Keeper(tmp_path))
        return course.resume(), course.done, course.best, len(course.history)

    meet(2, fall)
    assert meet(2, again) == [(b"model of 4", 4, 4, 4)] * 2


def test_a_checkpoint_of_another_job_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Keeper(tmp_path).save(b"model", {"done": 3})
    assert Keeper(tmp_path).load() is not None
    monkeypatch.setenv("SHOAL_JOB", "j2")
    assert Keeper(tmp_path).load() is None


def test_only_the_newest_checkpoint_is_kept_and_none_after_the_end(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    for done in (2, 4):
        keeper.save(b"model", {"done": done})
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == ["model-4", "state.json"]
    keeper.clear()
    keeper.clear()
    assert keeper.load() is None


LISTENS = """
import ctypes, os, signal, socket, threading, time
from pathlib import Path
from shoal.adapters.boost.course import Course
from shoal.adapters.boost.keeper import Keeper
from shoal.adapters.boost.task import Task
from shoal.adapters.meeting import Meeting
from shoal.train.world import World

course = Course(Task((Path("x"),)), Meeting(World()), Keeper(Path("outputs")))
course.listen()
ours, theirs = socket.socketpair()
def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    theirs.send(b"x")
threading.Timer(0.3, stop).start()
print(ctypes.CDLL(None).recv(ours.fileno(), ctypes.create_string_buffer(1), 1, 0), flush=True)
until = time.monotonic() + 20
while not course._asked and time.monotonic() < until:
    time.sleep(0.01)  # another thread takes the signal, a moment later perhaps
print(course.after([], lambda: b"model"), course.stopped, flush=True)
"""


def test_a_stop_interrupts_no_call_of_the_framework(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root)}
    for _ in range(3):
        words = [sys.executable, "-c", LISTENS]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[::2] == ["1", "True True"], done.stderr
