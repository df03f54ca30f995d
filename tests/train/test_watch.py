"""A wait that lasts is told of: for whom, and where both stand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.train.seeing import Seeing
from shoal.train.watch import Watch, place
from shoal.train.world import Peer, World


def world(rank: int, shared: Path) -> World:
    workers = tuple(Peer(f"worker-{number}", number, "here", "127.0.0.1", 0) for number in range(2))
    return World(rank=rank, size=2, workers=workers, shared=shared)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_long_wait_is_named_once_then_after_twice_the_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, heard: None
) -> None:
    clock = Clock()
    seeing = Seeing(clock=clock)
    watch = Watch(World(rank=0), seeing, notice=30)
    with seeing.waiting_for("all-reduce of step 41: worker-2"):
        for at, said in ((10, 0), (31, 1), (40, 1), (59, 1), (61, 2)):
            clock.now = at
            _elsewhere(watch.look)
            assert caplog.text.count("for all-reduce of step 41: worker-2") == said
    clock.now = 1000
    _elsewhere(watch.look)
    assert caplog.text.count("has waited") == 2
    assert "test_watch.py" in caplog.text  # this worker's own stack


def test_the_missing_one_tells_where_its_main_thread_stands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, heard: None
) -> None:
    clock = Clock()
    mine, theirs = Seeing(clock=clock), Seeing(clock=clock)
    other = Watch(world(1, tmp_path), theirs, notice=30)
    over = threading.Event()

    def answer() -> None:
        while not over.wait(0.01):
            other.look()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with mine.waiting_for("the clerk: worker-1"):
            clock.now = 31
            Watch(world(0, tmp_path), mine, notice=30).look()
    finally:
        over.set()
        thread.join(10)
    assert "worker-1's main thread is in " in caplog.text
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_place_names_file_line_and_function() -> None:
    found = list[str]()
    _elsewhere(lambda: found.append(place()))
    assert "test_watch.py:" in found[0] or "threading.py:" in found[0]


def _elsewhere(call: Callable[[], None]) -> None:
    """In a thread of its own, as the watch runs."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
