"""The machines of a LightGBM job as its parameters."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import shoal.lightgbm
from shoal.adapters import lightgbm as adapter
from shoal.contract import Member, Roster

WORKERS = [Member(f"worker-{n}", "worker", n, "here", "127.0.0.1", {"main": 40 + n, "train": 50 + n}) for n in (0, 1)]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = tmp_path / "roster.json"
    roster.write_text(Roster(1, "j-1", [WORKERS[1], WORKERS[0]]).to_json())
    for name, value in {"ROSTER": str(roster), "RANK": "1", "SIZE": "2"}.items():
        monkeypatch.setenv(f"SHOAL_{name}", value)
    monkeypatch.setattr(adapter, "_trainings", itertools.count())


def test_alone_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_ROSTER", raising=False)
    assert shoal.lightgbm.params() == {}


def test_in_a_job_everybody_has_the_same_list_and_a_port_of_its_own(job: None) -> None:
    assert shoal.lightgbm.params() == {
        "machines": "127.0.0.1:40,127.0.0.1:41",
        "local_listen_port": 41,
        "num_machines": 2,
        "tree_learner": "data",
        "pre_partition": True,
    }


def test_a_worker_that_is_the_only_one_trains_by_itself(job: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SIZE", "1")
    assert shoal.lightgbm.params() == {}


def test_a_second_training_has_ports_that_were_never_used(job: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Both:
        def gather(self, port: int) -> list[int]:
            return [60, port]

    monkeypatch.setattr(adapter, "_meeting", Both)
    shoal.lightgbm.params()
    again = shoal.lightgbm.params()
    port = again["local_listen_port"]
    assert again["machines"] == f"127.0.0.1:60,127.0.0.1:{port}" and port != 41
