"""`shoal env` on a real server."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Shoal
from tests.support.wheels import wheel

pytestmark = pytest.mark.real


def test_an_environment_is_built_listed_shown_used_and_removed(served: Shoal) -> None:
    wheel(served.folder / "env" / "wheels", "tiny")
    (served.folder / "env" / "needs.txt").write_text("--no-index\n--find-links wheels\ntiny\n")
    built = served("env", "build", "env/needs.txt", timeout=100)
    assert built.code == 0, built.err
    assert "Successfully installed tiny-1.0" in built.out
    listed = json.loads(served("env", "ls", "--json").out)
    key = next(one["key"] for one in listed["built"] if one["name"] == "needs.txt")
    assert any(line.startswith(f"{key[:8]}  needs.txt") for line in served("env", "ls").lines)
    assert "tiny     1.0" in served("env", "show", key[:8]).out
    used = served(
        "run", "--folder", "env", "--environment", "needs.txt", "--", "python", "-c", "import tiny; print(tiny.VERSION)"
    )
    assert "worker-0 | 1.0" in used.lines, used.err
    assert served("env", "rm", key).out.startswith(f"removed needs.txt ({key[:8]})")
    gone = served("env", "rm", key)
    assert gone.code != 0 and "no environment" in gone.err


def test_presets_are_shown_without_a_build(served: Shoal) -> None:
    lines = served("env", "show", "xgboost-3.2").lines
    assert lines[0].split() == ["name", "xgboost-3.2"] and "xgboost-cpu==3.2.0" in lines[1]


def test_an_unknown_preset_offers_the_nearest_at_every_door(served: Shoal) -> None:
    (served.folder / "train.py").write_text("print('hello')\n")
    for words in (
        ["run", "train.py", "--environment", "pytorch-2.3"],
        ["env", "build", "pytorch-2.3"],
        ["env", "show", "pytorch-2.3"],
    ):
        ran = served(*words)
        assert ran.code != 0 and "did you mean 'pytorch-2.13'" in ran.err, ran.err


def test_a_containerfile_is_printed_without_a_server(shoal: Shoal) -> None:
    ran = shoal("env", "image", "jax-0.10", "--base", "python:3.12-slim")
    assert ran.code == 0 and "FROM python:3.12-slim" in ran.lines
    assert "give --user and --password-env" in shoal("env", "image", "jax-0.10", "--user", "ada").err
    assert "--push needs --tag" in shoal("env", "image", "jax-0.10", "--push").err


def test_a_job_without_a_record_cannot_be_frozen(served: Shoal) -> None:
    job = served("submit", "--quiet", "--", "true").out.strip()
    ran = served("env", "freeze", job)
    assert ran.code != 0 and "has no record of its packages" in ran.err
