"""Each finding of the doctor, good and bad, without a bad machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal._lib.cgroup import Cgroup
from shoal.cli import doctor
from shoal.engine.isolation import InForce, Mode
from shoal.home import Home

from .conftest import Shoal


def test_an_old_python_fails_and_says_what_to_install() -> None:
    found = doctor.python((3, 9, 1))
    assert found.level == "fail" and "3.11" in found.todo


def test_loopback_answers_here() -> None:
    assert doctor.ports().level == "ok"


def test_a_home_that_is_not_there_yet_is_judged_by_the_folder_above(tmp_path: Path) -> None:
    assert doctor.disk(Home(tmp_path / "a" / "b")).level in ("ok", "warn")


def test_cgroups_are_tried_and_taken_away(tmp_path: Path) -> None:
    weak, strong = Cgroup({"unified": tmp_path / "gone"}, 2), Cgroup({"memory": tmp_path / "gone"}, 1)
    strong.holds_memory = True
    levels = [doctor.cgroups(lambda *_, group=group, **__: group).level for group in (None, weak, strong)]
    assert levels == ["warn", "warn", "ok"]


def test_a_clock_that_was_never_set_fails() -> None:
    assert doctor.clock(0.0).level == "fail"
    assert doctor.clock(2_000_000_000.0).level == "ok"


def test_few_open_files_and_little_shared_memory_are_warned_of(tmp_path: Path) -> None:
    assert doctor.open_files(256).level == "warn"
    assert doctor.open_files(65536).level == "ok"
    assert doctor.shared_memory(tmp_path / "none").level == "warn"


@pytest.mark.parametrize("mode", ["user", "bubblewrap"])
def test_it_says_that_the_memory_of_jobs_kept_apart_is_watched_also_before_there_are_several_users(mode: Mode) -> None:
    apart, together = InForce(mode, "because"), InForce("none", "there is one user")
    for found in (doctor.keeps_apart(apart, False, apart), doctor.keeps_apart(together, True, apart)):
        assert found.level == "ok" and mode in found.message and "memory is watched" in found.message
    alone = doctor.keeps_apart(together, False, together)
    assert alone.level == "warn" and "watched" not in alone.message


def test_the_doctor_speaks_plain_lines_and_json_without_a_server(shoal: Shoal) -> None:
    plain, as_json = shoal("doctor"), shoal("doctor", "--json")
    assert plain.code == as_json.code == 0, plain.out + plain.err
    found = {finding["check"]: finding for finding in json.loads(as_json.out)}
    assert {"python", "ports", "disk", "gpus", "cgroups", "clock", "server", "isolation"} <= set(found)
    assert "there is one user" in found["isolation"]["message"] and "none runs" in found["server"]["message"]
    assert len(plain.lines) == len(found)
    assert not (shoal.home / "home.db").exists()
