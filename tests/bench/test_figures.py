"""Each bench that needs a server, in small, really run: it measures, checks what it says it checks, and cleans up."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from shoal.bench import drain, launch_command, listing, log_followers, log_shipping, memory, scale

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of a bench go under the test's, so that what it leaves can be seen."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def left_over(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("shoal-bench-*"))


def test_launch_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_command, "TIMES", 1)
    (figure,) = launch_command.launch_command()
    assert figure.value > 0
    assert left_over(tmp_path) == []


def test_a_queue_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "JOBS", 6)
    (figure,) = drain.drain()
    assert figure.value > 0


def test_listing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "JOBS", 120)
    monkeypatch.setattr(listing, "ROUNDS", 1)
    monkeypatch.setattr(listing, "COMMANDS", 1)
    assert [figure.bench for figure in listing.listing()] == ["list.api", "list.cli"]
    assert left_over(tmp_path) == []


def test_every_shipped_line_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shipping, "MEGABYTES", 8)
    (figure,) = log_shipping.log_shipping()
    assert figure.value > 0


def test_every_follower_sees_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_followers, "FOLLOWERS", 5)
    monkeypatch.setattr(log_followers, "SECONDS", 4)
    monkeypatch.setattr(log_followers, "MEASURED", 1.0)
    cores, lag = log_followers.log_followers()
    assert (cores.bench, lag.bench) == ("logs.follow", "logs.follow.lag")
    assert lag.value > 0


def test_memory_is_measured_while_jobs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "JOBS", 2)
    monkeypatch.setattr(memory, "SETTLE_SECONDS", 0.0)
    idle, _ = memory.memory()
    assert idle.value > 10


def test_every_simulated_shepherd_gets_its_launch_and_the_roster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SHEPHERDS", 40)
    monkeypatch.setattr(scale, "BEAT", 1.0)
    monkeypatch.setattr(scale, "BEATING", 2.0)
    monkeypatch.setattr(scale, "LIMIT", 20.0)
    join, beat = scale.scale()
    assert join.value > 0
    assert beat.value >= 0
