"""Memory limits, by the kernel where a cgroup can be made and by the shepherd's own eyes elsewhere; and a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal._lib import cgroup
from shoal.shepherd.samples import memory_above

from .flock import Flock, python, shell, until

pytestmark = pytest.mark.real
Make = Callable[..., Flock]

MIB = 1024 * 1024
GREEDY = f"""
import time
x = bytearray(300 * {MIB})
for at in range(0, len(x), 4096): x[at] = 1
time.sleep(60)
"""
GREEDY_CHILD = f"import subprocess, sys\nsys.exit(subprocess.call([sys.executable, '-c', {GREEDY!r}]) and 1)"
HIDE_CGROUPS = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]


def needs(what: list[str], advice: str) -> None:
    if subprocess.run(what, capture_output=True).returncode != 0:
        pytest.skip(advice)


def test_a_rank_above_its_memory_is_ended_by_its_cgroup(flock: Make) -> None:
    group = cgroup.make(f"shoal-test-{os.getpid()}", memory=MIB)
    held = group is not None and group.holds_memory
    if group is not None:
        group.remove()
    if not held:
        pytest.skip(
            "no cgroup with memory can be made here; run as root, or under: systemd-run --user --scope -p Delegate=yes"
        )
    gang = flock(python("worker-0", GREEDY, memory=100 * MIB, cpu=0.5))
    shepherd = gang.launch()
    ended = gang.ended()[0]
    assert (ended["oom"], ended["signal"]) == (True, signal.SIGKILL)
    assert gang.leave(shepherd) == 0
    assert not list(Path("/sys/fs/cgroup").glob(f"**/shoal-{gang.key}*"))


@pytest.mark.parametrize("script", [GREEDY, GREEDY_CHILD])
def test_a_rank_above_its_memory_is_ended_by_the_watch(flock: Make, script: str) -> None:
    needs([*HIDE_CGROUPS, "true"], "needs root to hide the cgroups; run: sudo make test")
    gang = flock(python("worker-0", script, memory=100 * MIB))
    gang.wrap = HIDE_CGROUPS
    gang.launch()
    ended = gang.ended()[0]
    assert ended["oom"] is True
    assert ended["signal"] == signal.SIGKILL
    assert "above its limit of 100.0 MiB" in ended["message"]
    assert gang.alive() == []


def test_a_rank_below_its_memory_lives(flock: Make) -> None:
    gang = flock(python("worker-0", f"x = bytearray(50 * {MIB}); print('fine')", memory=200 * MIB))
    gang.launch()
    ended = gang.ended()[0]
    assert (ended["exit_code"], ended["oom"]) == (0, False)


def test_memory_shared_between_processes_counts_once() -> None:
    script = f"""
import mmap, os, time
shared = mmap.mmap(-1, 100 * {MIB})
for at in range(0, len(shared), 4096): shared[at] = 1
for _ in range(3):
    if os.fork() == 0:
        for at in range(0, len(shared), 4096): shared[at]
        print("ready", flush=True)
        time.sleep(60)
print(os.getpid(), flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert child.stdout is not None
        for _ in range(4):
            child.stdout.readline()
        pids = [
            child.pid,
            *[int(pid) for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()],
        ]
        assert len(pids) == 4
        assert memory_above(pids, 250 * MIB) is None
        assert (memory_above(pids, 50 * MIB) or 0) > 100 * MIB
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    needs(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)],
        "needs root to mount a small disk; run: sudo make test",
    )
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_neither_blocks_nor_ends_a_rank_and_the_log_says_what_is_missing(
    archive: Path, small_disk: Path, tmp_path: Path
) -> None:
    script = """
wait_for() { while [ ! -e $GO.$1 ]; do sleep 0.02; done; }
echo first; wait_for flood; seq 1 2000000; touch $GO.flooded; wait_for end; echo last
"""
    go = tmp_path / "go"
    gang = Flock(archive, small_disk, [shell("worker-0", script, env={"GO": str(go)})], log_limit=1 << 30)
    try:
        shepherd = gang.launch()
        until(lambda: gang.server.lines("worker-0") == ["first"])
        gang.server.switch_off()
        Path(f"{go}.flood").touch()
        until(lambda: Path(f"{go}.flooded").exists(), 40, "the rank writes on though the disk is full")
        gang.server.switch_on()
        until(lambda: len(gang.server.lines("worker-0")) > 1000)
        Path(f"{go}.end").touch()
        assert gang.ended()[0]["exit_code"] == 0
        assert gang.leave(shepherd) == 0
        lines = gang.server.lines("worker-0")
        assert len([line for line in lines if "lost here: the disk of this node was full" in line]) >= 1
        assert (lines[0], lines[-1]) == ("first", "last")
        numbers = [int(line) for line in lines if line.isdigit()]
        assert numbers == sorted(set(numbers))
    finally:
        gang.close()
