from __future__ import annotations

from pathlib import Path

import pytest

from shoal.shepherd.events import Events
from shoal.shepherd.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "log")


def test_events_wait_until_they_are_acknowledged(tmp_path: Path, journal: Journal) -> None:
    events = Events(tmp_path / "events", journal)
    for member in ("a", "b", "c"):
        events.add("started", member, 0, pid=7)
    assert [event["n"] for event in events.waiting(2)] == [1, 2]
    events.acknowledge(2)
    events.acknowledge(1)
    assert [event["member"] for event in events.waiting(10)] == ["c"]


def test_a_successor_finds_all_of_them_but_a_torn_one(tmp_path: Path, journal: Journal) -> None:
    events = Events(tmp_path / "events", journal)
    events.add("started", "a", 0, pid=7)
    events.add("ended", "a", 0, exit_code=0)
    with open(tmp_path / "events", "a") as file:
        file.write('{"n": 3, "mem')
    successor = Events(tmp_path / "events", journal)
    assert successor.load()
    assert [event["event"] for event in successor.waiting(10)] == ["started", "ended"]


def test_nothing_is_found_where_nothing_was(tmp_path: Path, journal: Journal) -> None:
    assert not Events(tmp_path / "events", journal).load()


def test_a_full_disk_keeps_events_in_memory(journal: Journal) -> None:
    events = Events(Path("/dev/full"), journal)
    events.add("started", "a", 0)
    assert len(events.waiting(10)) == 1
