from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal._lib import process

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def make(*argv: str, **more: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE, **more))
        return started[-1]

    yield make
    for each in started:
        process.send_group(each.pid, signal.SIGKILL)
        each.communicate()


def until(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return true()


def test_stat_tells_who_a_process_is() -> None:
    found = process.stat(os.getpid())
    assert found is not None
    assert (found.parent, found.group, found.session) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert found.rss > 1_000_000
    assert process.stat(2**22 + 1) is None


def test_a_name_with_parentheses_does_not_confuse(start: Start, tmp_path: Any) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    child = start(str(program), "100")
    until(lambda: b") R 1" in Path(f"/proc/{child.pid}/stat").read_bytes())
    found = process.stat(child.pid)
    assert found is not None
    assert found.parent == os.getpid()


def test_a_zombie_is_not_alive(start: Start) -> None:
    child = start("/bin/true")
    until(lambda: (process.stat(child.pid) or [0, ""])[1] == "Z")
    assert not process.alive(child.pid)
    assert child.pid in process.children(os.getpid())


def test_descendants_are_found_over_generations(start: Start) -> None:
    child = start("/bin/sh", "-c", "sh -c 'sleep 100 & sleep 100; true'; true")
    until(lambda: len(process.descendants(child.pid)) == 3)
    assert process.children(child.pid) == process.descendants(child.pid)[:1]


def test_children_are_found_on_kernels_that_do_not_list_them(start: Start) -> None:
    child = start("/bin/sleep", "100")
    assert child.pid in process._children_by_scan(os.getpid())


def test_a_mark_is_what_a_process_was_started_with(start: Start) -> None:
    child = start("/bin/sleep", "100", env={"SHOAL_TEST": "a b=c"})
    until(lambda: process.mark(child.pid, "SHOAL_TEST"))
    assert process.mark(child.pid, "SHOAL_TEST") == "a b=c"
    assert process.mark(child.pid, "SHOAL") is None


def test_sweep_ends_all_that_carry_the_mark_and_nobody_else(start: Start) -> None:
    mark = uuid.uuid4().hex
    env = {"SHOAL_TEST": mark, "PATH": os.environ["PATH"]}
    stubborn = start(
        "/bin/sh", "-c", "trap '' TERM; setsid sleep 1000 & echo ready; while :; do sleep 0.1; done", env=env
    )
    other = start("/bin/sleep", "100", env={"SHOAL_TEST": mark + "0"})
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    found = process.sweep("SHOAL_TEST", mark)
    assert stubborn.pid in found
    assert len(found) >= 2
    assert process.marked("SHOAL_TEST", mark) == []
    assert other.poll() is None
    assert process.sweep("SHOAL_TEST", mark) == []


def test_sweep_with_a_grace_lets_them_end_in_their_own_way(start: Start) -> None:
    mark = uuid.uuid4().hex
    script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    child = start("/bin/sh", "-c", script, env={"SHOAL_TEST": mark, "PATH": os.environ["PATH"]})
    assert child.stdout is not None
    child.stdout.readline()
    process.sweep("SHOAL_TEST", mark, grace=30)
    assert child.wait(10) == 0
    assert child.stdout.read().endswith(b"bye\n")


def test_sweep_spares_whom_it_is_told_to(start: Start) -> None:
    mark = uuid.uuid4().hex
    kept = start("/bin/sleep", "100", env={"SHOAL_TEST": mark})
    until(lambda: process.mark(kept.pid, "SHOAL_TEST"))
    assert process.sweep("SHOAL_TEST", mark, spare={kept.pid}) == []
    assert kept.poll() is None


def test_signals_to_nobody_are_harmless() -> None:
    assert process.send(2**22 + 1, signal.SIGTERM) is False
    assert process.send_group(2**22 + 1, signal.SIGTERM) is False


def test_orphans_come_to_whoever_adopts_them(start: Start) -> None:
    script = """
import os, subprocess
from shoal._lib import process
process.adopt_orphans()
subprocess.run(["sh", "-c", "setsid sleep 100 > /dev/null &"], check=True)
print(os.getpid(), [process.stat(pid).parent for pid in process.children(os.getpid())], flush=True)
for pid in process.children(os.getpid()):
    process.send(pid, 9)
"""
    child = start(sys.executable, "-c", script)
    assert child.stdout is not None
    assert child.stdout.readline().decode().strip() == f"{child.pid} [{child.pid}]"


def test_memory_and_disk_of_a_process_are_told() -> None:
    assert process.unique_memory(os.getpid()) > 1_000_000
    assert set(process.disk_bytes(os.getpid())) == {"read_bytes", "write_bytes"}
    assert process.disk_bytes(2**22 + 1) == {"read_bytes": 0, "write_bytes": 0}
