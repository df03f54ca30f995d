from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from shoal.contract import HOSTFILE, Member, Process, Roster, Task
from shoal.shepherd import place as places
from shoal.shepherd.place import Place, fill_once, take_lock


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(
        Task(
            "http://x",
            None,
            f"k{os.getpid()}",
            "s",
            "n1",
            "h",
            str(tmp_path),
            str(tmp_path / "work"),
            [],
            1,
            library="/lib/of/shoal",
        )
    )


def test_a_folder_is_filled_by_the_first_and_found_by_the_others(tmp_path: Path) -> None:
    filled: list[int] = []
    threads = [threading.Thread(target=fill_once, args=(tmp_path / "work", lambda: filled.append(1))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert filled == [1]
    assert (tmp_path / ".work.complete").read_text() == "whole\n"


def test_a_folder_that_was_not_filled_to_the_end_is_filled_again(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fill_once(tmp_path / "work", fail)
    filled: list[int] = []
    fill_once(tmp_path / "work", lambda: filled.append(1))
    assert filled == [1]


def test_the_shared_folder_is_private_noted_and_removed(place: Place) -> None:
    shared = place.shared()
    assert shared == place.shared()
    assert shared.stat().st_mode & 0o777 == 0o700
    assert place.shared_note.read_text() == str(shared)
    (shared / "segment").write_text("x")
    place.tidy()
    place.tidy()
    assert not shared.exists()
    assert not place.shared_note.exists()


def test_a_shared_folder_that_others_can_write_to_is_not_used(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_SHM", tmp_path / "shm")
    trap = tmp_path / "shm" / f"shoal-k{os.getpid()}-n1"
    trap.mkdir(parents=True)
    trap.chmod(0o777)
    assert place.shared() == tmp_path / "n1.shm"


def test_the_environment_takes_little_from_the_machine_and_fills_in_paths(place: Place) -> None:
    machine = {"PATH": "/bin", "HOME": "/root", "AWS_SECRET": "no"}
    env = place.environment(Process("worker-0", ["x"], {"HOME": "/mine", "R": "@roster", "P": "@library:/my"}), machine)
    assert env == {
        "PATH": "/bin",
        "HOME": "/mine",
        "R": str(place.roster),
        "P": "/lib/of/shoal:/my",
        "SHOAL_GANG": f"k{os.getpid()}",
        "SHOAL_MEMBER": "worker-0",
        "SHOAL_START": "0",
    }


def test_every_folder_of_a_path_that_is_ours_is_filled_in(place: Place) -> None:
    env = place.environment(Process("worker-0", ["x"], {"P": "@library/shoal/x:@library:/my"}), {})
    assert env["P"] == "/lib/of/shoal/shoal/x:/lib/of/shoal:/my"


def test_a_roster_is_replaced_whole(place: Place) -> None:
    place.write_roster({"version": 1})
    place.write_roster({"version": 2})
    assert place.roster.read_text() == '{"version": 2}'
    assert sorted(path.name for path in place.folder.iterdir()) == ["n1.hosts", "n1.roster.json"]


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    first = take_lock(tmp_path / "lock")
    assert first is not None
    assert take_lock(tmp_path / "lock") is None
    os.close(first)
    second = take_lock(tmp_path / "lock")
    assert second is not None
    os.close(second)


def test_the_roster_lies_there_as_a_hostfile_too_and_leaves_with_who_is_gone(place: Place) -> None:
    def member(name: str, address: str, state: str = "up") -> Member:
        return Member(name, name.split("-")[0], 0, "n", address, {}, state=state)

    workers = [member("worker-0", "10.0.0.1"), member("worker-1", "10.0.0.1"), member("worker-2", "10.0.0.2")]
    told = place.environment(Process("worker-0", ["x"], {HOSTFILE: "@hostfile"}), {})
    for version, members, lines in (
        (1, [*workers, member("server-0", "10.0.0.3")], ["10.0.0.1 slots=2", "10.0.0.2 slots=1"]),
        (2, [*workers[:2], member("worker-2", "10.0.0.2", "gone")], ["10.0.0.1 slots=2"]),
        (3, [member("tally-0", "10.0.0.3")], ["10.0.0.3 slots=1"]),
    ):
        place.write_roster(json.loads(Roster(version, "k", members).to_json()))
        assert Path(told[HOSTFILE]).read_text().splitlines() == lines
        assert json.loads(place.roster.read_text())["version"] == version


def test_every_path_in_the_library_is_filled_in_and_the_users_own_stay(place: Place) -> None:
    told = {"PYTHONPATH": "@library/shoal/adapters/x:@library:/mine/@library"}
    env = place.environment(Process("worker-0", ["x"], told), {})
    assert env["PYTHONPATH"] == "/lib/of/shoal/shoal/adapters/x:/lib/of/shoal:/mine/@library"
