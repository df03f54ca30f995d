"""What was typed, as one job: script, job file, command behind `--`, and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.cli.jobfile import typed, typed_job
from shoal.errors import BadSpec


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    (folder / "jobs").mkdir(parents=True)
    (folder / "train.py").write_text("")
    (folder / "jobs" / "other.py").write_text("")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("job", "script", "after", "flags", "raw"),
    [
        ({}, "train.py", None, {}, {"script": "train.py"}),
        ({}, "train.py", ["--epochs", "5"], {}, {"script": "train.py", "args": ["--epochs", "5"]}),
        ({}, None, ["python", "-c", "1"], {}, {"command": ["python", "-c", "1"]}),
        ({}, None, ["x"], {"script": "train.py"}, {"script": "train.py", "args": ["x"]}),
        ({"script": "a.py", "args": ["1"]}, None, ["2"], {}, {"script": "a.py", "args": ["2"]}),
        ({"command": ["ls"]}, None, ["pwd"], {}, {"command": ["pwd"]}),
        ({"command": ["ls"]}, "train.py", None, {}, {"script": "train.py"}),
    ],
)
def test_script_file_and_what_stands_behind_the_dashes_make_one_job(
    job: dict[str, Any], script: str | None, after: list[str] | None, flags: dict[str, Any], raw: dict[str, Any]
) -> None:
    assert typed(job, script, after, flags) == raw


def test_paths_in_a_job_file_start_at_its_folder(here: Path) -> None:
    (here / "jobs" / "job.yaml").write_text("script: other.py\n")
    ready = typed_job("jobs/job.yaml", None, None, {}).draft()
    assert (ready.folder, ready.spec.script) == (here / "jobs", "other.py")


def test_a_typed_script_starts_at_the_current_folder_even_with_a_job_file_elsewhere(here: Path) -> None:
    (here / "jobs" / "job.yaml").write_text("workers: 3\n")
    ready = typed_job("train.py", "jobs/job.yaml", None, {}).draft()
    assert (ready.folder, ready.spec.script, ready.spec.expand()[0].low) == (here, "train.py", 3)


def test_a_typed_folder_starts_at_the_current_folder(here: Path) -> None:
    ready = typed_job("jobs/other.py", None, None, {}, folder=".").draft()
    assert (ready.folder, ready.spec.script) == (here, "jobs/other.py")


def test_flags_go_before_the_job_file(here: Path) -> None:
    (here / "job.yml").write_text("script: train.py\nworkers: 2\nname: old\n")
    ready = typed_job("job.yml", None, None, {"workers": "4"}).draft()
    assert (ready.spec.name, ready.spec.expand()[0].low) == ("old", 4)


@pytest.mark.parametrize(
    ("script", "file", "after", "flags", "said"),
    [
        ("a.yaml", "b.yaml", None, {}, "two job files"),
        ("train.py", None, None, {"script": "b.py"}, "two scripts"),
        (None, None, [], {}, "nothing stands behind '--'"),
        (None, None, None, {}, "nothing to run"),
    ],
)
def test_saying_two_things_or_nothing_is_refused(
    script: str | None, file: str | None, after: list[str] | None, flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadSpec) as caught:
        typed_job(script, file, after, flags).draft()
    assert said in caught.value.message
