"""Containerfiles, and the commands around them, through a stand-in for podman that notes what it is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.client.images import Credentials, build, push, recipe
from shoal.errors import BadSpec, StartFailed

NOTE = """#!/bin/sh
echo "$@" >> {notes}
case "$*" in *login*) cat >> {notes}.stdin;; esac
case "$*" in *broken*) echo "no such thing" >&2; exit 125;; esac
"""


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    notes = tmp_path / "notes"
    program.write_text(NOTE.format(notes=notes))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return notes


def quiet(line: str) -> None:
    pass


def test_a_preset_becomes_a_containerfile_that_leaves_nothing_of_the_build_behind() -> None:
    made = recipe("tensorflow-2.21", base="python:3.12-slim")
    mount = "RUN --mount=type=bind,target=/shoal-context cd /shoal-context && python3 -m pip install --no-cache-dir"
    assert made.containerfile == (
        "# tensorflow-2.21, as Shoal would build it.\n"
        "FROM python:3.12-slim\n"
        f"{mount} -r requirements.txt\n"
        f"{mount} --no-deps tf_keras==2.21.0\n"
        "ENV PYTHONUNBUFFERED=1\n"
    )
    assert made.files == {"requirements.txt": "tensorflow-cpu==2.21.0\nscikit-learn\n"}


def test_a_requirements_file_is_read_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("six\n")
    made = recipe("requirements.txt", folder=tmp_path)
    assert made.folder == tmp_path and "install --no-cache-dir -r requirements.txt" in made.containerfile


def test_a_pyproject_becomes_requirements_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nrequires-python = "==3.8.*"\ndependencies = ["six"]\n'
    )
    made = recipe("pyproject.toml", folder=tmp_path)
    assert made.files == {"requirements.txt": "six\n"} and "python:3.8-slim" in made.containerfile


@pytest.mark.parametrize("environment", ["/usr/bin/python3", "image://x:1", "absent.txt"])
def test_what_is_no_recipe_is_refused(environment: str, tmp_path: Path) -> None:
    with pytest.raises(BadSpec):
        recipe(environment, folder=tmp_path)


def test_it_is_built_under_its_tag(podman: Path) -> None:
    build(recipe("sklearn-1.7"), "team/sk:1", quiet)
    assert podman.read_text().startswith("build --tag team/sk:1 --file ")


def test_a_build_that_fails_says_the_programs_last_words(podman: Path) -> None:
    with pytest.raises(StartFailed, match="podman left with 125 and said last: no such thing"):
        build(recipe("sklearn-1.7"), "team/broken:1", quiet)


def test_a_password_goes_through_the_programs_input_and_nowhere_else(
    podman: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter2")
    push("registry.example.com/team/sk:1", Credentials(user="ada", password_variable="REGISTRY_PASSWORD"), quiet)
    login, pushed = podman.read_text().splitlines()
    assert login.startswith("login --authfile=") and login.endswith("--password-stdin registry.example.com")
    assert pushed.startswith("push --authfile=") and "hunter2" not in podman.read_text()
    assert podman.with_name("notes.stdin").read_text() == "hunter2"
    assert not Path(pushed.split("=")[1].split(" ")[0]).parent.exists()


def test_credentials_that_are_not_there_are_told_before_anything_runs(tmp_path: Path) -> None:
    for wrong, words in (
        (Credentials(file=tmp_path / "absent"), "there is no file"),
        (Credentials(user="ada"), "belong together"),
        (Credentials(user="ada", password_variable="SURELY_NOT_SET"), "SURELY_NOT_SET is not set"),
    ):
        with pytest.raises(BadSpec, match=words):
            wrong.check()
