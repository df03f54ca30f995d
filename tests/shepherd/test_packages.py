"""Which interpreter a command runs under, what is asked of it, and how long the answer is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.shepherd import packages, probe
from shoal.shepherd.packages import KEPT, Memory, answer, interpreter, question, variables


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/v/bin/python", "train.py"], ["/v/bin/python"]),
        (["python3.11", "-I", "-u", "train.py"], ["python3.11", "-I"]),
        (["python", "-m", "shoal.train.ps"], ["python"]),
        (["env", "A=1", "python3", "-s", "-E", "x.py"], ["env", "A=1", "python3", "-s", "-E"]),
        (["bwrap", "--bind", "/", "/", "--", "/v/python", "x.py"], ["bwrap", "--bind", "/", "/", "--", "/v/python"]),
        (["nice", "echo"], None),
        (["/bin/sh", "-c", "python train.py"], None),
        (["rm", "-rf", "python"], None),
        (["no-such-program"], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_interpreter_of_a_command_is_found_and_nothing_else_is_run(
    argv: list[str], words: list[str] | None
) -> None:
    assert interpreter(argv, os.defpath) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#!/v/bin/python3\n", ["/v/bin/python3"]),
        ("#!/usr/bin/env python3\n", ["/usr/bin/env", "python3"]),
        ("#!/usr/bin/env -S python3 -u\n", ["/usr/bin/env", "python3"]),
        ("#!/bin/sh\n", None),
        ("\x7fELF", None),
        ("", None),
    ],
)
def test_an_installed_command_names_its_interpreter(tmp_path: Path, line: str, words: list[str] | None) -> None:
    (tmp_path / "torchrun").write_text(line)
    assert interpreter(["torchrun", "train.py"], str(tmp_path)) == words
    assert interpreter([str(tmp_path / "torchrun")], "") == words


def asked(env: dict[str, str] | None = None, *options: str) -> dict[str, Any]:
    told = answer(_output(question([sys.executable, *options]), env))
    assert told is not None
    return told


def _output(command: list[str], env: dict[str, str] | None = None) -> bytes:
    return subprocess.run(command, capture_output=True, env=env or dict(os.environ), check=True, cwd="/").stdout


def test_an_interpreter_says_what_is_installed_in_it() -> None:
    told = asked()
    assert told["path"] == sys.executable and told["version"] == ".".join(map(str, sys.version_info[:3]))
    assert told["packages"]["pytest"] == pytest.__version__ and "pytest-xdist" in told["packages"]
    assert all(isinstance(at, int) for at in told["marks"].values())


def _distribution(folder: Path, name: str, version: str, **files: str) -> Path:
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (about / f"{file}.json").write_text(text)
    return about


def test_search_paths_of_the_rank_are_followed_and_come_first(tmp_path: Path) -> None:
    _distribution(tmp_path, "My_Own.Thing", "1.5")
    _distribution(tmp_path, "pytest", "0.0.1")
    told = asked({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert told["packages"]["my-own-thing"] == "1.5" and told["packages"]["pytest"] == "0.0.1"
    assert str(tmp_path) in told["marks"]
    assert "my-own-thing" not in asked({**os.environ, "PYTHONPATH": str(tmp_path)}, "-E")["packages"]


def test_where_a_package_came_from_is_told_without_who_signed_in(tmp_path: Path) -> None:
    vcs = {"url": "https://me:hunter2@host/r.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    _distribution(tmp_path, "from_git", "1", direct_url=json.dumps(vcs))
    _distribution(
        tmp_path, "edited", "2", direct_url=json.dumps({"url": "file:///src", "dir_info": {"editable": True}})
    )
    told = asked({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert told["sources"]["from-git"] == "git+https://host/r.git@abc" and told["sources"]["edited"] == "file:///src"
    assert "hunter2" not in json.dumps(told)


def test_a_damaged_package_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken-1.dist-info").mkdir()
    _distribution(tmp_path, "whole", "1")
    told = asked({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert "whole" in told["packages"] and "broken" not in told["packages"]


def test_the_cuda_that_torch_was_built_for_is_read_without_importing_it(tmp_path: Path) -> None:
    _distribution(tmp_path, "torch", "9.9")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\ncuda: Optional[str] = '13.0'\nhip = None\n"
    )
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    assert asked({**os.environ, "PYTHONPATH": str(tmp_path)})["cuda"] == "13.0"


def test_words_printed_around_the_answer_do_not_disturb() -> None:
    told = probe.MARK + json.dumps({"sources": {}, "packages": {"a": "1"}})
    assert answer(f"welcome!\n{told}\nbye\n".encode()) == {"sources": {}, "packages": {"a": "1"}}
    assert answer(b"Traceback ...\nImportError: json\n") is None
    assert answer(f"{probe.MARK}{{".encode()) is None


def test_only_what_decides_where_an_interpreter_looks_is_passed_on() -> None:
    env = {"PATH": "/bin", "PYTHONPATH": "/x", "SHOAL_SECRET": "s", "HF_TOKEN": "t", "RANK": "0", "CONDA_PREFIX": "/c"}
    assert variables(env) == {"PATH": "/bin", "PYTHONPATH": "/x", "CONDA_PREFIX": "/c"}


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    place = tmp_path / "site"
    place.mkdir()
    os.utime(place, (1, 1))
    return {"packages": {"a": "1"}, "marks": {str(place): place.stat().st_mtime_ns}}


def test_an_answer_is_believed_until_a_folder_changes(tmp_path: Path, told: dict[str, Any]) -> None:
    memory = Memory(tmp_path / "memory")
    memory.keep(["python"], {"PATH": "/bin"}, told)
    assert memory.find(["python"], {"PATH": "/bin"}) == told
    assert memory.find(["python"], {"PATH": "/other"}) is None and memory.find(["python3"], {"PATH": "/bin"}) is None
    (tmp_path / "site" / "new.dist-info").mkdir()
    assert memory.find(["python"], {"PATH": "/bin"}) is None


def test_an_answer_from_a_folder_that_changed_just_now_is_not_kept(tmp_path: Path, told: dict[str, Any]) -> None:
    memory = Memory(tmp_path / "memory")
    memory.keep(["python"], {}, {**told, "marks": {str(tmp_path): time.time_ns()}})
    assert memory.find(["python"], {}) is None


def test_a_damaged_or_impossible_memory_is_no_memory(tmp_path: Path, told: dict[str, Any]) -> None:
    memory = Memory(tmp_path / "memory")
    memory.keep(["python"], {}, told)
    (kept,) = (tmp_path / "memory").iterdir()
    for text in ("{", "[]", "{}", '{"marks": 1}'):
        kept.write_text(text)
        assert memory.find(["python"], {}) is None
    (tmp_path / "file").touch()
    Memory(tmp_path / "file" / "memory").keep(["python"], {}, told)


def test_the_oldest_answers_are_forgotten(tmp_path: Path, told: dict[str, Any]) -> None:
    memory = Memory(tmp_path / "memory")
    for number in range(KEPT + 5):
        memory.keep([f"python{number}"], {}, told)
        os.utime(memory._file([f"python{number}"], {}), (number, number))
    assert len(list((tmp_path / "memory").iterdir())) == KEPT
    assert packages.Memory(tmp_path / "memory").find([f"python{KEPT + 4}"], {}) == told
