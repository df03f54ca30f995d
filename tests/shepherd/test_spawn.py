from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from shoal.shepherd.spawn import SpawnFailed, spawn


def run(argv: list[str], env: dict[str, str], cwd: Path) -> tuple[int, bytes]:
    ear, mouth = os.pipe()
    try:
        pid = spawn(argv, env, str(cwd), mouth, ())
    finally:
        os.close(mouth)
    with open(ear, "rb") as file:
        output = file.read()
    return os.waitpid(pid, 0)[1], output


def test_a_process_leads_its_own_session_and_hears_no_terminal(tmp_path: Path) -> None:
    script = "import os, sys; print(os.getsid(0) == os.getpid() == os.getpgrp(), repr(sys.stdin.read()), os.getcwd())"
    status, output = run([sys.executable, "-c", script], {}, tmp_path)
    assert status == 0
    assert output.decode().strip() == f"True '' {tmp_path}"


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
    with pytest.raises(SpawnFailed, match="the folder .*gone cannot be entered"):
        run(["/bin/true"], {}, tmp_path / "gone")


def test_a_broken_pipe_ends_a_process_as_it_does_in_a_shell(tmp_path: Path) -> None:
    status, _ = run(
        [sys.executable, "-c", "import os; print(os.system('yes | head -1 > /dev/null'))"],
        {"PATH": "/bin:/usr/bin"},
        tmp_path,
    )
    assert status == 0
    script = "import signal; print(signal.getsignal(signal.SIGXFSZ), signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    _, output = run(["/bin/sh", "-c", "grep -E 'SigIgn|SigBlk' /proc/self/status"], {"PATH": "/bin:/usr/bin"}, tmp_path)
    assert all(int(line.split()[1], 16) == 0 for line in output.decode().splitlines()), script


def test_no_handle_of_ours_leaks_into_a_rank(tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w"):
        _, output = run(["/bin/ls", "-l", "/proc/self/fd"], {}, tmp_path)
    assert "secret" not in output.decode()


def test_a_process_dies_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from shoal.shepherd.spawn import spawn
pid = spawn(["/bin/sleep", "1000"], {{}}, "/", 1, ())
os.write(1, str(pid).encode() + b"\\n")
time.sleep(1000)
"""
    ear, mouth = os.pipe()
    parent = (
        os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, "-c", f"import os; os.dup2({mouth}, 1)\n{script}"], {})
        if False
        else _start(script, mouth)
    )
    os.close(mouth)
    with open(ear, "rb") as file:
        child = int(file.readline())
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert file.read() == b""  # the pipe ends only when the child is gone too
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1]


def _start(script: str, output: int) -> int:
    import subprocess

    return subprocess.Popen([sys.executable, "-c", script], stdout=output).pid
