"""The commands that run ranks in an image, and what their ends mean. A real podman is no part of the test machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.contract import Environment, Process, Task
from shoal.shepherd import container
from shoal.shepherd.container import Containers, find_program, mounts_of, pull_words
from tests.shepherd.flock import Flock

RANK = Process(
    "worker-0",
    ["@python", "train.py", "--epochs", "5"],
    {"SHOAL_SECRET": "hush", "COLOUR": "blue", "CUDA_VISIBLE_DEVICES": ""},
    memory=1 << 30,
    cpu=1.5,
)


@pytest.fixture(autouse=True)
def same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "short_id", lambda length: "7f3k")


def run(program: str, what: Process = RANK, uid: int = 0) -> list[str]:
    mounts = ["/home/work/j1", "/home/gangs/j1-1", "/home/library:ro"]
    return Containers(program, "team/train:1", mounts, "/home/work/j1", "shoal-j1-1").put_on(what).argv


def test_podman_runs_a_rank_with_the_paths_the_user_and_the_network_of_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container.os, "getuid", lambda: 1000)
    assert run("/usr/bin/podman") == [
        "/usr/bin/podman", "run", "--rm", "--init", "--name=shoal-j1-1-worker-0-7f3k", "--network=host", "--ipc=host",
        "--workdir=/home/work/j1", "--userns=keep-id", "--volume=/home/work/j1:/home/work/j1",
        "--volume=/home/gangs/j1-1:/home/gangs/j1-1", "--volume=/home/library:/home/library:ro", "--env=COLOUR",
        "--env=CUDA_VISIBLE_DEVICES", "--env=SHOAL_GANG", "--env=SHOAL_MEMBER", "--env=SHOAL_SECRET",
        "--env=SHOAL_START", "--memory=1073741824", "--cpu-shares=1536", "team/train:1", "python3", "train.py",
        "--epochs", "5",
    ]  # fmt: skip


def test_docker_is_told_the_user_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container.os, "getuid", lambda: 1000)
    monkeypatch.setattr(container.os, "getgid", lambda: 100)
    assert "--user=1000:100" in run("/usr/bin/docker") and "--userns=keep-id" not in run("/usr/bin/docker")


def test_no_value_of_a_variable_stands_in_the_command() -> None:
    assert not any("hush" in word or "blue" in word for word in run("/usr/bin/podman"))


def test_the_programs_own_variables_stay_outside_and_the_users_path_goes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/docker.sock")
    what = Process("worker-0", ["train"], {"PATH": "/opt/bin", "HOME": "/home/me"})
    put = Containers("/usr/bin/docker", "team/train:1", [], "/w", "shoal-j1-1").put_on(what)
    assert put.env == {"DOCKER_HOST": "unix:///run/docker.sock"}
    assert {"--env=PATH=/opt/bin", "--env=HOME=/home/me"} <= set(put.argv) and "--env=DOCKER_HOST" not in put.argv


@pytest.mark.parametrize(("program", "flag"), [("podman", "--device=nvidia.com/gpu=all"), ("docker", "--gpus=all")])
def test_a_rank_with_gpus_sees_the_driver(program: str, flag: str) -> None:
    gpu = Process("worker-0", ["train"], {"CUDA_VISIBLE_DEVICES": "0"})
    assert flag in run(program, gpu) and flag not in run(program)


def test_a_hard_cap_of_cores_is_one_inside_too() -> None:
    assert "--cpus=0.5" in run("podman", Process("w-0", ["x"], {}, cpu=0.5, cpu_quota=True))


def test_credentials_are_named_by_their_file() -> None:
    wanted = Environment("image", "image://team/train:1", image="team/train:1", auth="/etc/shoal/config.json")
    assert pull_words("/usr/bin/podman", wanted) == [
        "/usr/bin/podman", "pull", "--authfile=/etc/shoal/config.json", "team/train:1",
    ]  # fmt: skip
    assert pull_words("/usr/bin/docker", wanted) == ["/usr/bin/docker", "--config=/etc/shoal", "pull", "team/train:1"]


def test_podman_is_taken_before_docker(tmp_path: Path) -> None:
    for name in ("docker", "podman"):
        (tmp_path / name).touch(0o755)
    assert find_program(f"/nowhere:{tmp_path}") == f"{tmp_path}/podman"
    assert find_program("/nowhere") is None


def test_both_ends_of_the_librarys_link_are_seen(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "shoal").symlink_to(tmp_path / "package")
    task = Task("", None, "j1-1", "", "n", "h", "/g", "/w", [], 1, library=str(tmp_path / "library"))
    assert mounts_of(task, [Path("/w")]) == ["/w", f"{tmp_path}/library:ro", f"{tmp_path}/package:ro"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("memory", "exits", "oom"), [(1 << 30, 137, True), (None, 137, False), (1 << 30, 1, False)], ids=str
)
def test_a_container_with_a_limit_that_was_killed_inside_was_out_of_memory(
    flock: Callable[..., Flock],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memory: int | None,
    exits: int,
    oom: bool,
) -> None:
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ntest "$1" != run || exit {exits}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    herd = flock(Process("worker-0", ["train"], {}, memory=memory))
    herd.server.environment = Environment("image", "image://team/train:1", image="team/train:1").to_dict()
    shepherd = herd.launch()
    [end] = herd.ended(1)
    assert (end["exit_code"], end["oom"]) == (exits, oom)
    assert ("most likely for memory" in (end["message"] or "")) is oom
    assert herd.leave(shepherd) == 0


@pytest.mark.real
def test_a_program_that_is_no_container_may_exit_with_137_for_its_own_reasons(flock: Callable[..., Flock]) -> None:
    herd = flock(Process("worker-0", ["/bin/sh", "-c", "exit 137"], {}, memory=1 << 30))
    shepherd = herd.launch()
    [end] = herd.ended(1)
    assert (end["exit_code"], end["oom"]) == (137, False)
    assert herd.leave(shepherd) == 0
