from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal._lib import process
from shoal.shepherd.spawn import SpawnFailed, spawn

from .flock import until


def run(argv: list[str], env: dict[str, str], cwd: Path) -> tuple[int, bytes]:
    ear, mouth = os.pipe()
    try:
        pid = spawn(argv, env, str(cwd), mouth)
    finally:
        os.close(mouth)
    with open(ear, "rb") as file:
        output = file.read()
    return os.waitpid(pid, 0)[1], output


def test_a_process_leads_its_own_group_in_the_session_of_its_parent_and_has_no_input(tmp_path: Path) -> None:
    script = "import os, sys; print(os.getpid() == os.getpgrp(), os.getsid(0), repr(sys.stdin.read()), os.getcwd())"
    status, output = run([sys.executable, "-c", script], {}, tmp_path)
    assert status == 0
    assert output.decode().strip() == f"True {os.getsid(0)} '' {tmp_path}"


def test_a_process_leads_a_session_where_that_is_wished(tmp_path: Path) -> None:
    ear, mouth = os.pipe()
    pid = spawn([sys.executable, "-c", "import os; print(os.getsid(0))"], {}, str(tmp_path), mouth, session=True)
    os.close(mouth)
    with open(ear, "rb") as file:
        assert int(file.read()) == pid
    assert os.waitpid(pid, 0)[1] == 0


def test_a_program_is_looked_for_on_the_path_of_the_rank(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "mine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    assert run(["mine"], {"PATH": f"/nowhere:{program.parent}"}, tmp_path) == (0, b"found\n")


def test_a_relative_program_starts_in_the_folder_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho here\n")
    (tmp_path / "run.sh").chmod(0o755)
    assert run(["./run.sh"], {}, tmp_path) == (0, b"here\n")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nothing-here"], "no program 'nothing-here' on PATH"),
        (["/etc/passwd"], "/etc/passwd cannot be started: Permission denied"),
        (["/bin/echo", "a\0b"], "NUL"),
        (["/bin/echo", "x" * 3_000_000], "Argument list too long"),
    ],
)
def test_what_cannot_be_started_says_why(argv: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpawnFailed, match=said):
        run(argv, {"PATH": "/bin"}, tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpawnFailed, match=r"the folder .*gone cannot be entered"):
        run(["/bin/true"], {}, tmp_path / "gone")


def test_no_signal_is_ignored_or_blocked(tmp_path: Path) -> None:
    script = "grep -E 'SigIgn|SigBlk' /proc/self/status"
    _, output = run(["/bin/sh", "-c", script], {"PATH": "/bin:/usr/bin"}, tmp_path)
    libc_own = 0b11 << 31  # signals 32 and 33, which no program can set: they are as the test runner was given them
    assert [int(line.split()[1], 16) & ~libc_own for line in output.decode().splitlines()] == [0, 0]


def test_no_handle_of_ours_leaks_into_a_rank(tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w"):
        _, output = run(["/bin/ls", "-l", "/proc/self/fd"], {}, tmp_path)
    assert "secret" not in output.decode()


def test_a_process_dies_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from shoal.shepherd.spawn import spawn
pid = spawn(["/bin/sleep", "1000"], {{}}, "/", 1)
os.write(1, str(pid).encode() + b"\\n")
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == b""  # the pipe ends only when the child has let go of it too
    until(lambda: not process.alive(child))
