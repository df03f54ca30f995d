import os
from pathlib import Path

import pytest

from shoal.engine import machine

TOTAL = 8 << 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(f"MemTotal:  {TOTAL // 1024} kB\nMemFree: 1 kB\n")
    return folder


def group(root: Path, path: str, **files: str) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_without_groups_it_is_all_of_the_machine(proc: Path, tmp_path: Path) -> None:
    assert machine.memory(proc, tmp_path / "none") == TOTAL
    assert machine.cpus(proc, tmp_path / "none") == len(os.sched_getaffinity(0))


def test_the_tightest_limit_above_us_counts_in_the_unified_hierarchy(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/box/job\n")
    group(tmp_path / "cg", "box", memory__max=str(1 << 30), cpu__max="50000 100000")
    group(tmp_path / "cg", "box/job", memory__max="max", cpu__max="max 100000")
    assert machine.memory(proc, tmp_path / "cg") == 1 << 30
    assert machine.cpus(proc, tmp_path / "cg") == 0.5


def test_the_limit_counts_in_the_older_hierarchies_also_when_our_path_is_told_from_the_host(
    proc: Path, tmp_path: Path
) -> None:
    (proc / "self" / "cgroup").write_text("4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n")
    group(tmp_path / "cg", "memory", memory__limit_in_bytes=str(2 << 30))
    group(tmp_path / "cg", "cpu", cpu__cfs_quota_us="25000", cpu__cfs_period_us="100000")
    assert machine.memory(proc, tmp_path / "cg") == 2 << 30
    assert machine.cpus(proc, tmp_path / "cg") == 0.25


def test_a_limit_larger_than_the_machine_is_no_limit(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("4:memory:/\n2:cpu:/\n")
    group(tmp_path / "cg", "memory", memory__limit_in_bytes="9223372036854771712")
    group(tmp_path / "cg", "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert machine.memory(proc, tmp_path / "cg") == TOTAL
    assert machine.cpus(proc, tmp_path / "cg") == len(os.sched_getaffinity(0))


def test_this_machine_has_something() -> None:
    assert machine.memory() > 1 << 20
    assert machine.cpus() > 0
