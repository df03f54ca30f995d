"""Freezing what a job had; the rest is proven on a real server, in tests/faults/test_environments.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.client.draft import draft
from shoal.client.environments import build, freeze
from shoal.client.jobs import Job
from shoal.errors import BadSpec, NotFound


class Api:
    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def request(self, method: str, path: str) -> dict[str, Any]:
        return self._answer


def job(**record: Any) -> Job:
    data = {"id": "7f3k", "name": "digits", "attempts": [{"number": 1}, {"number": 2, **record}]}
    return Job(Api(data), data)  # type: ignore[arg-type]


def test_what_the_last_attempt_had_becomes_a_requirements_file() -> None:
    packages = {"torch": "2.13.0+cpu", "NumPy": "2.3.5"}
    assert freeze(job(record={"packages": packages})) == (
        "# What job 7f3k (digits) ran with, attempt 2.\nNumPy==2.3.5\ntorch==2.13.0+cpu\n"
    )


@pytest.mark.parametrize("record", [{}, {"record": None}, {"record": {"packages": {}}}])
def test_a_job_without_a_record_says_so(record: dict[str, Any]) -> None:
    with pytest.raises(NotFound, match="job 7f3k has no record of its packages"):
        freeze(job(**record))


@pytest.mark.parametrize("environment", ["/usr/bin/python3", "image://team/train:1"])
def test_what_is_used_as_it_is_is_not_built(environment: str) -> None:
    with pytest.raises(BadSpec, match="is not built but used as it is"):
        build(environment, Api({}))  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    (tmp_path / "src" / "requirements.txt").touch()
    (tmp_path / "requirements.txt").touch()
    return tmp_path


def test_a_requirements_file_is_named_in_the_folder_that_is_sent(project: Path) -> None:
    made = draft("src/train.py", base=project, environment="requirements.txt")
    assert made.spec.environment == "requirements.txt"
    whole = draft("src/train.py", base=project / "src", folder=project, environment="requirements.txt")
    assert whole.spec.environment == "requirements.txt"


def test_a_requirements_file_named_from_where_one_stands_is_found_in_the_folder(project: Path) -> None:
    (project / "src" / "requirements.txt").rename(project / "src" / "more.txt")
    made = draft("src/train.py", base=project, environment="src/more.txt")
    assert made.spec.environment == "more.txt"


def test_a_requirements_file_outside_the_folder_is_refused_before_anything_is_sent(project: Path) -> None:
    (project / "src" / "requirements.txt").unlink()
    with pytest.raises(BadSpec, match=r"requirements.txt is not in the folder that is sent"):
        draft("src/train.py", base=project, environment="requirements.txt")
    with pytest.raises(BadSpec, match="there is no absent.txt"):
        draft("src/train.py", base=project, environment="absent.txt")
    with pytest.raises(BadSpec, match="nothing is sent along"):
        draft({"command": ["true"]}, base=project, environment="requirements.txt")
