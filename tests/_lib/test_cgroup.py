from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal._lib import cgroup
from shoal._lib.cgroup import Cgroup

MIB = 1024 * 1024


@pytest.fixture
def group() -> Iterator[Cgroup]:
    made = cgroup.make(f"shoal-test-{os.getpid()}", memory=64 * MIB, cpu=0.5, quota=True)
    if made is None:
        pytest.skip("no cgroup can be made here; run as root, or under: systemd-run --user --scope -p Delegate=yes")
    yield made
    made.kill()
    made.remove()


def inside(group: Cgroup, script: str) -> subprocess.Popen[bytes]:
    enter = "".join(f"open({door!r}, 'w').write('0')\n" for door in group.doors)
    return subprocess.Popen([sys.executable, "-c", enter + script], stdout=subprocess.PIPE, stdin=subprocess.PIPE)


def test_a_process_enters_and_is_found_and_killed(group: Cgroup) -> None:
    child = inside(group, "import time; print('in', flush=True); time.sleep(100)")
    assert child.stdout is not None
    child.stdout.readline()
    assert child.pid in group.pids()
    assert group.remove() is False
    group.kill()
    assert child.wait(10) == -9
    child.communicate()
    assert group.remove() is True


def test_what_needs_more_memory_than_the_limit_is_killed_and_counted(group: Cgroup) -> None:
    if not group.holds_memory:
        pytest.skip("this machine does not let us limit memory")
    assert group.oom_kills() == 0
    child = inside(group, f"x = bytearray(200 * {MIB})\nfor i in range(0, len(x), 4096): x[i] = 1")
    assert child.wait(30) == -9
    child.communicate()
    assert group.oom_kills() == 1


def test_everything_is_harmless_when_the_group_is_gone(group: Cgroup) -> None:
    assert group.remove()
    assert group.remove()
    group.kill()
    assert group.pids() == []
    assert group.oom_kills() == 0


def test_where_nothing_is_writable_there_is_no_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup, "_parents", lambda: {"memory": tmp_path / "no", "unified": tmp_path / "no"})
    assert cgroup.make("x", memory=MIB) is None


def test_a_version_2_group_gets_its_files_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup, "_parents", lambda: {"unified": tmp_path})
    for name in ("memory.max", "memory.swap.max", "cpu.weight", "cpu.max", "memory.events"):
        (tmp_path / "g").mkdir(exist_ok=True)
        (tmp_path / "g" / name).touch()
    (tmp_path / "g" / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    made = cgroup.make("g", memory=64 * MIB, cpu=0.25, quota=True)
    assert made is not None
    assert (made.version, made.holds_memory, made.holds_cpu, made.oom_kills()) == (2, True, True, 2)
    assert (tmp_path / "g/memory.max").read_text() == str(64 * MIB)
    assert (tmp_path / "g/cpu.weight").read_text() == "25"
    assert (tmp_path / "g/cpu.max").read_text() == "25000 100000"
    assert made.doors == [str(tmp_path / "g/cgroup.procs")]


def test_our_own_place_is_found_also_when_the_mount_begins_below_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "/proc/self/mountinfo": "1 2 0:3 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "1 2 0:4 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n",
        "/proc/self/cgroup": "4:memory:/docker/abc/inner\n0::/me\n",
    }
    monkeypatch.setattr(cgroup, "_read", lambda path: texts[str(path)])
    places = {name: str(path) for name, path in cgroup._parents().items()}
    assert places == {"memory": "/sys/fs/cgroup/memory/inner", "unified": "/sys/fs/cgroup/unified/me"}
