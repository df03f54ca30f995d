"""What a repository says of a folder: real repositories, also broken, foreign, empty and slow ones."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.client import git
from shoal.client.git import MOST_DIFF, Reading, fitting


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self("init", "-q", "-b", "main")

    def __call__(self, *words: str) -> str:
        who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always")
        done = subprocess.run(["git", "-C", str(self.root), *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.root / f"{name}.py").write_text(text)
        self("add", "-A")
        self("commit", "-q", "-m", "a change")
        return self("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "project")


def read(folder: Path, seconds: float = 30.0) -> dict[str, Any]:
    found = Reading(folder, seconds).result()
    assert found is not None
    return found


def test_a_clean_folder_tells_its_commit_and_branch(repository: Repository) -> None:
    commit = repository.commit(train="x = 1\n")
    found = read(repository.root)
    assert (found["commit"], found["branch"], found["dirty"]) == (commit, "main", False)
    assert found["remote"] is None and "diff" not in found and "note" not in found and found["folder"] == "."


def test_a_changed_file_makes_it_dirty_and_is_in_the_diff(repository: Repository) -> None:
    repository.commit(train="x = 1\n", other="y = 1\n")
    (repository.root / "train.py").write_text("x = 2\n")
    found = read(repository.root)
    assert found["dirty"] and found["changed"] == ["train.py"]
    assert "-x = 1\n+x = 2\n" in found["diff"] and "other" not in found["diff"]


def test_the_diff_can_be_applied_to_the_commit(repository: Repository, tmp_path: Path) -> None:
    repository.commit(train="x = 1\n", gone="z = 1\n")
    (repository.root / "train.py").write_text("x = 2\n")
    (repository.root / "gone.py").unlink()
    repository("mv", "train.py", "moved.py")
    diff = read(repository.root)["diff"]
    repository("stash")
    (tmp_path / "x.patch").write_text(diff)
    repository("apply", str(tmp_path / "x.patch"))
    assert (repository.root / "moved.py").read_text() == "x = 2\n"
    assert not (repository.root / "gone.py").exists() and not (repository.root / "train.py").exists()


def test_what_git_does_not_know_is_named_and_not_shown(repository: Repository) -> None:
    repository.commit(train="x = 1\n")
    (repository.root / ".gitignore").write_text("*.log\n")
    (repository.root / "note.txt").write_text("the launch code is 1234\n")
    (repository.root / "a.log").write_text("")
    found = read(repository.root)
    assert found["untracked"] == [".gitignore", "note.txt"] and not found["dirty"]
    assert "1234" not in json.dumps(found)


def test_a_password_in_the_remote_address_is_left_out(repository: Repository) -> None:
    repository.commit(train="x = 1\n")
    repository("remote", "add", "backup", "https://other.example/x")
    repository("remote", "add", "origin", "https://ann:hunter2@example.org/team/project.git")
    found = read(repository.root)
    assert found["remote"] == "https://example.org/team/project.git" and "hunter2" not in json.dumps(found)


def test_a_subfolder_tells_of_itself_and_counts_the_rest(repository: Repository) -> None:
    repository.commit(top="x = 1\n")
    folder = repository.root / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("x = 1\n")
    repository.commit()
    (repository.root / "top.py").write_text("secret plans\n")
    (repository.root / "new.txt").write_text("")
    (folder / "train.py").write_text("x = 2\n")
    (folder / "new.py").write_text("")
    found = read(folder)
    assert found["folder"] == "deep/er" and found["changed"] == ["deep/er/train.py"] and found["elsewhere"] == 1
    assert found["untracked"] == ["new.py"] and "secret plans" not in found["diff"]


def test_what_is_left_out_of_the_upload_is_left_out_of_the_diff(repository: Repository) -> None:
    (repository.root / ".shoalignore").write_text("private/\n*.env\n")
    (repository.root / "private").mkdir()
    (repository.root / "private" / "key.py").write_text("old\n")
    (repository.root / "prod.env").write_text("old\n")
    repository.commit(train="x = 1\n")
    for name in ("private/key.py", "prod.env"):
        (repository.root / name).write_text("hunter2\n")
    found = read(repository.root)
    assert not found["dirty"] and found["elsewhere"] == 2 and "hunter2" not in json.dumps(found)


def test_a_folder_outside_of_any_repository_costs_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert Reading(tmp_path).result() is None


def test_without_git_the_note_says_so(repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git cannot be run" in read(repository.root)["note"]


def test_a_repository_without_a_commit_is_no_error(repository: Repository) -> None:
    (repository.root / "train.py").write_text("x = 1\n")
    repository("add", "train.py")
    found = read(repository.root)
    assert found["commit"] is None and found["note"] == "the repository has no commit yet" and found["dirty"]


def test_a_broken_repository_is_noted_and_not_taken_for_the_one_around_it(repository: Repository) -> None:
    repository.commit(train="x = 1\n")
    inner = repository.root / "inner"
    (inner / ".git").mkdir(parents=True)
    found = read(inner)
    assert found.get("commit") is None and "not a git repository" in found["note"]


def test_a_repository_of_somebody_else_is_noted(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git refuses to read it, because its configuration could run programs; so do we."""
    repository.commit(train="x = 1\n")
    # Git's own way to test this: it then takes every repository for one of another owner.
    monkeypatch.setitem(git._QUIET, "GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(repository.root))
    found = read(repository.root)
    assert "dubious ownership" in found["note"] and "commit" not in found


def test_a_shallow_clone_tells_its_commit(repository: Repository, tmp_path: Path) -> None:
    repository.commit(train="x = 1\n")
    commit = repository.commit(train="x = 2\n")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{repository.root}", str(clone)], check=True)
    (clone / "train.py").write_text("x = 3\n")
    found = read(clone)
    assert found["commit"] == commit and "+x = 3" in found["diff"]


def test_a_detached_head_has_no_branch(repository: Repository) -> None:
    commit = repository.commit(train="x = 1\n")
    repository("checkout", "-q", "--detach")
    found = read(repository.root)
    assert (found["commit"], found["branch"]) == (commit, None)


def test_a_worktree_is_a_repository(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit(train="x = 1\n")
    repository("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    found = read(tmp_path / "side")
    assert (found["commit"], found["branch"]) == (commit, "side")


def test_a_binary_change_is_named_only(repository: Repository) -> None:
    (repository.root / "weights.bin").write_bytes(bytes(range(256)))
    repository.commit(train="x = 1\n")
    (repository.root / "weights.bin").write_bytes(bytes(range(255, -1, -1)))
    found = read(repository.root)
    assert found["changed"] == ["weights.bin"] and "Binary files" in found["diff"] and "\0" not in found["diff"]


def test_a_change_in_a_submodule_makes_it_dirty(repository: Repository, tmp_path: Path) -> None:
    library = Repository(tmp_path / "library")
    library.commit(core="x = 1\n")
    repository.commit(train="x = 1\n")
    repository("submodule", "add", "-q", str(library.root), "library")
    repository.commit()
    assert not read(repository.root)["dirty"]
    (repository.root / "library" / "core.py").write_text("x = 2\n")
    found = read(repository.root)
    assert found["changed"] == ["library"] and "-dirty" in found["diff"]


def test_odd_names_come_through(repository: Repository) -> None:
    for name in ("mit leer.py", "名前.py", "*.py", 'quo"te.py'):
        (repository.root / name).write_text("x = 1\n")
    repository.commit()
    for name in ("mit leer.py", "名前.py", "*.py"):
        (repository.root / name).write_text("x = 2\n")
    found = read(repository.root)
    assert found["changed"] == ["*.py", "mit leer.py", "名前.py"] and found["diff"].count("+x = 2") == 3
    assert "quo" not in found["diff"]


def test_a_huge_diff_is_cut_at_a_line_and_says_so(repository: Repository) -> None:
    repository.commit(train="")
    (repository.root / "train.py").write_text("".join(f"line {n} '\t\\'\n" for n in range(400_000)))
    diff = read(repository.root)["diff"]
    assert len(json.dumps(diff, ensure_ascii=False)) < MOST_DIFF + 200
    assert diff.splitlines()[-1].startswith("… the rest of ") and diff.splitlines()[-2].startswith("+line ")


def test_names_without_end_are_cut_before_they_fill_a_request(repository: Repository) -> None:
    for number in range(300):
        (repository.root / f"{number:03}-{'x' * 240}").touch()
    repository.commit(train="x = 1\n")
    for number in range(300):
        (repository.root / f"{number:03}-{'y' * 240}").touch()
        (repository.root / f"{number:03}-{'x' * 240}").write_text("changed\n")
    found = read(repository.root)
    assert 100 < len(found["changed"]) < 300 and 100 < len(found["untracked"]) < 300
    assert found["diff"].count("+changed") == 300


def test_whatever_goes_wrong_the_job_goes_out(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit(train="x = 1\n")

    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    (repository.root / "train.py").write_text("x = 2\n")
    monkeypatch.setattr(Reading, "_is_sent", broken)
    found = read(repository.root)
    assert found["commit"] and found["note"] == "git could not be understood: ZeroDivisionError"


def test_a_diff_that_fits_is_not_touched() -> None:
    assert fitting("a\nb") == "a\nb" and fitting("") == ""


def test_a_lock_that_somebody_left_does_not_stop_the_reading(repository: Repository) -> None:
    commit = repository.commit(train="x = 1\n")
    (repository.root / ".git" / "index.lock").write_text("")
    (repository.root / "train.py").write_text("x = 2\n")
    found = read(repository.root)
    assert found["commit"] == commit and found["dirty"]


def test_a_repository_that_takes_too_long_still_tells_its_commit(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit(train="x = 1\n")
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    slow.write_text(f'#!/bin/sh\ncase "$*" in *status*) exec sleep 600;; esac\nexec {real} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}{os.pathsep}{os.environ['PATH']}")
    reading = Reading(repository.root, seconds=0.5)
    found = reading.result()
    assert found is not None and found["commit"] == commit and found["note"] == "git took too long"
    deadline = time.monotonic() + 30
    while any(process.poll() is None for process in reading._running):
        assert time.monotonic() < deadline, "git was left running"
        time.sleep(0.01)


def test_programs_that_the_repository_names_are_not_run(repository: Repository, tmp_path: Path) -> None:
    repository.commit(train="x = 1\n")
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    (repository.root / ".gitattributes").write_text("*.py diff=trap\n")
    for key in ("core.fsmonitor", "diff.external", "diff.trap.textconv", "diff.trap.command"):
        repository("config", key, str(trap))
    (repository.root / "train.py").write_text("x = 2\n")
    assert "+x = 2" in read(repository.root)["diff"]
    assert not (tmp_path / "sprung").exists()


def test_variables_of_an_outer_git_do_not_lead_astray(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = repository.commit(train="x = 1\n")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert read(repository.root)["commit"] == commit
