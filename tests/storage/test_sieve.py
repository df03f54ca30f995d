"""Patterns of users: matched elsewhere, within a time."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from shoal._lib import frames
from shoal.storage import sieve
from shoal.storage.logs import LogStore
from shoal.storage.sieve import SlowPattern, find

NEVER_ENDS = "(a|a)+$b"


def test_it_finds_what_the_library_finds() -> None:
    lines = ["loss=1", "", "step 2", "LOSS", "ä loss\r", "\ud800 loss"]
    assert list(find("loss", lines)) == [0, 4, 5]
    assert list(find("(?i)^loss$|^$", lines)) == [1, 3]
    assert list(find("nothing", lines)) == []
    assert list(find("x", [])) == []
    assert list(find("^$", [""])) == [0]


def test_a_pattern_that_never_ends_is_given_up_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "SECONDS", 0.3)
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(0.005):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    with pytest.raises(SlowPattern, match="took over"):
        find(NEVER_ENDS, ["a" * 60])
    took = time.monotonic() - began
    stop.set()
    thread.join()
    assert took < 20
    assert ticks > 5  # the interpreter was free meanwhile
    assert list(find("a", ["a"])) == [0]


def test_many_threads_may_ask_at_once_and_few_processes_are_kept() -> None:
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append([n, *find(f"^{n}$", ["0", "1", "2", "3", "4", "5"])]))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[n, n] for n in range(6)]
    assert len(sieve._idle) <= sieve.KEPT


def test_a_slow_search_says_so_in_the_log_once_and_comes_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sieve, "SECONDS", 0.3)
    store = LogStore(tmp_path)
    for number in range(3):
        end = store.ends("job", 1).get("worker-0", 0)
        store.append("job", 1, "worker-0", end, frames.encode(number, b"a" * 60_000 + b"\n"))
    monkeypatch.setattr("shoal.storage.views._BATCH_BYTES", 1)
    lines = [line for batch in store.read_lines("job", grep=partial(find, NEVER_ENDS)) for line in batch.lines]
    assert len(lines) == 1 and "nothing is shown from here on" in lines[0][2]
    with pytest.raises(SlowPattern):
        store.follow("job", tail=5, grep=partial(find, NEVER_ENDS))
    store.close()
