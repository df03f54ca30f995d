"""Sleeping on a word: woken by who changes it, never past its time, and never at all when it has changed already."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from shoal.train.wire import futex
from shoal.train.wire.segment import Segment


@pytest.fixture
def word(tmp_path: Path) -> Segment:
    return Segment.create(tmp_path / "word", 64)


def test_a_word_that_has_changed_is_not_slept_on(word: Segment) -> None:
    word.view(0, 4).cast("I")[0] = 5
    futex.wait(word.address(), 4, 600.0)


def test_a_sleeper_is_woken(word: Segment) -> None:
    words, woken = word.view(0, 4).cast("I"), threading.Event()

    def sleep() -> None:
        while words[0] == 0:
            futex.wait(word.address(), 0, 600.0)
        woken.set()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    words[0] = 1
    while not woken.is_set():  # it may fall asleep only now: the kernel compares the word then
        futex.wake(word.address())
        woken.wait(0.01)
    thread.join(10)


def test_sleep_ends_by_itself(word: Segment) -> None:
    began = time.monotonic()
    futex.wait(word.address(), 0, 0.01)
    assert time.monotonic() - began >= 0.009


def test_where_the_call_is_refused_sleeps_are_short(word: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futex, "_refused", True)
    futex.wait(word.address(), 0, 600.0)
    futex.wake(word.address())


def test_numbers_beyond_32_bits_are_cut(word: Segment) -> None:
    word.view(0, 4).cast("I")[0] = 7
    futex.wait(word.address(), (1 << 40) + 6, 600.0)
    futex.fence()
    futex.give_way()
