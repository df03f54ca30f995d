"""A shepherd that is killed takes its ranks along and leaves what was not sent; a successor brings that home."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .flock import Flock, shell, until

pytestmark = pytest.mark.real
Make = Callable[..., Flock]


def killed_with_a_full_spool(gang: Flock) -> list[str]:
    """Kills the shepherd while the server is away; returns the lines the ranks had got out."""
    shepherd = gang.launch()
    until(lambda: len(gang.server.lines("worker-0")) > 3)
    gang.server.switch_off()
    written = len(gang.server.lines("worker-0")) + 10
    until(lambda: spooled(gang) > written)
    shepherd.send_signal(signal.SIGKILL)
    shepherd.wait()
    until(lambda: gang.alive() == [], what="the ranks die with their shepherd")
    return [f"line {number}" for number in range(spooled(gang))]


def spooled(gang: Flock) -> int:
    return sum(path.read_bytes().count(b"line ") for path in (gang.folder / "spool" / "worker-0").glob("*.seg"))


COUNTING = "i=0; while :; do echo line $i; i=$((i+1)); sleep 0.01; done"


def test_ranks_die_with_their_shepherd_and_the_rest_is_drained(flock: Make) -> None:
    gang = flock(shell("worker-0", COUNTING, env={"S": "@shared"}, cpu=0.5, memory=1 << 30))
    lines = killed_with_a_full_spool(gang)
    shared = Path((gang.folder / "node0.shared").read_text())
    assert shared.is_dir()
    gang.server.switch_on()
    assert gang.start("--drain").wait(30) == 0
    assert gang.server.lines("worker-0") == lines
    assert [event["event"] for event in gang.server.events.values()] == ["started"]
    assert gang.server.done == ["node0"]
    assert len(gang.server.joins) == 1
    assert not shared.exists()
    groups = (gang.folder / "node0.cgroups").read_text().splitlines()
    assert not [group for group in groups if Path(group).exists()]


def test_a_second_start_after_a_kill_drains_instead_of_starting_ranks_twice(flock: Make) -> None:
    gang = flock(shell("worker-0", COUNTING))
    lines = killed_with_a_full_spool(gang)
    gang.server.switch_on()
    assert gang.start().wait(30) == 0
    assert gang.server.lines("worker-0") == lines
    assert len(gang.server.kinds("started")) == 1


def test_a_drain_leaves_a_living_shepherd_alone(flock: Make) -> None:
    gang = flock(shell("worker-0", "sleep 1000"))
    shepherd = gang.launch()
    until(lambda: gang.server.kinds("started"))
    assert gang.start("--drain").wait(20) == 0
    assert gang.server.done == []
    assert shepherd.poll() is None


def test_a_drain_of_a_gang_that_is_over_ends(flock: Make) -> None:
    gang = flock(shell("worker-0", COUNTING))
    killed_with_a_full_spool(gang)
    gang.server.over = True
    gang.server.switch_on()
    assert gang.start("--drain").wait(30) == 0


def test_last_lines_are_taken_though_events_are_not_any_more(flock: Make) -> None:
    gang = flock(shell("worker-0", COUNTING))
    lines = killed_with_a_full_spool(gang)
    gang.server.events.clear()
    gang.server.over_but_for = ("logs", "done")
    gang.server.over = True
    gang.server.switch_on()
    assert gang.start("--drain").wait(30) == 0
    assert gang.server.lines("worker-0") == lines
    assert gang.server.events == {}
    assert gang.server.done == ["node0"]


def test_a_drain_without_a_spool_just_says_done(flock: Make) -> None:
    gang = flock(shell("worker-0", "true"))
    assert gang.start("--drain").wait(20) == 0
    assert gang.server.done == ["node0"]
