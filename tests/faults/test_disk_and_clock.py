"""A full disk and a clock that jumps: jobs go on, and what could not be kept is said."""

from __future__ import annotations

import ctypes.util
import os
import sys
import time
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from tests.support.disk import filled, small_disk
from tests.support.live import Live, eventually, live_server

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

TALKING = """
import os, time
n = 0
while not os.path.exists(os.environ["FLAG"]):
    print("line", n, "x" * 1000, flush=True)
    n += 1
    time.sleep(0.002)
print("last", n, flush=True)
"""


def test_a_full_disk_stops_no_job_and_loses_only_what_it_says(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with small_disk(tmp_path / "disk", 48) as disk, live_server(disk / "home", "--cpus", "2") as live:
        job = live.python(TALKING, env={"FLAG": str(flag)}, resources={"cpu": 0.1})
        eventually(lambda: len(live.lines(job)) > 20)
        with filled(disk):
            with pytest.raises(ShoalError) as refused:
                for _ in range(200):  # the database may have a few free pages left
                    live.submit(["true"], env={"PADDING": "p" * 20_000}, resources={"cpu": 0.1})
            assert refused.value.code in ("disk_full", "store"), refused.value
            assert "room" in str(refused.value) or "full" in str(refused.value)
            time.sleep(2)  # lines that have nowhere to go keep coming
            assert live.process is not None and live.process.poll() is None, "the server lives"
        flag.touch()
        live.wait_state(job, "succeeded", seconds=90)
        lines = live.lines(job)
        assert lines[-1].startswith("last ")
        numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
        assert numbers == sorted(set(numbers)), "in order, none twice"
        if len(numbers) < int(lines[-1].split()[1]):
            assert any("lost" in line or "dropped" in line for line in lines), "what is missing is said"
        after = live.submit(["echo", "well"], resources={"cpu": 0.1})
        live.wait_state(after, "succeeded")
        assert live.lines(after) == ["well"]


def test_a_clock_that_jumps_ends_no_job_early_and_none_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = faketime()
    clock_file = tmp_path / "clock"
    clock_file.write_text("+0\n")
    for name, value in {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock_file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with live_server(tmp_path / "home", "--cpus", "2") as live:
        for name in ("LD_PRELOAD", "FAKETIME_TIMESTAMP_FILE"):
            monkeypatch.delenv(name)
        limited = live.submit(["sleep", "600"], max_duration=8, grace=1, resources={"cpu": 0.1})
        patient = live.submit(["sleep", "6"], max_duration="1h", estimate="30m", resources={"cpu": 0.1})
        for job in (limited, patient):
            live.wait_state(job, "running")
        clock_file.write_text("+2h\n")
        live.wait_state(patient, "succeeded", "stopped")
        assert (patient.state, patient.data["overran"]) == ("succeeded", False)
        clock_file.write_text("-3h\n")
        live.wait_state(limited, "stopped", seconds=30)
        assert limited.reason == "max_duration"
        later = live.submit(["true"], resources={"cpu": 0.1})
        live.wait_state(later, "succeeded")


def faketime() -> str:
    """The library that moves one process's clock; `make test` installs it where it may."""
    for folder in ("/usr/lib", "/usr/local/lib"):
        for path in Path(folder).rglob("libfaketime.so.1"):
            return str(path)
    found = ctypes.util.find_library("faketime")
    if found is None and os.environ.get("CI") != "true":
        pytest.skip("needs libfaketime to move a clock: sudo apt-get install libfaketime")
    assert found is not None, f"libfaketime is missing on {sys.platform}: apt-get install libfaketime"
    return found


def test_the_limit_of_a_log_keeps_head_and_tail_and_kills_nobody(live: Live) -> None:
    code = """
import sys
piece = b"".join(b"%09d\\n" % n for n in range(100_000))
for _ in range(100): sys.stdout.buffer.write(piece)
print("the end")
"""
    job = live.python(code, log_limit="4MiB", resources={"cpu": 0.1})
    live.wait_state(job, "succeeded", seconds=120)
    lines = live.lines(job)
    assert (lines[0], lines[-1]) == ("000000000", "the end")
    assert any("dropped" in line for line in lines)
    kept = sum(file.stat().st_size for file in (live.home.logs / job.id).rglob("*") if file.is_file())
    assert kept < 8 << 20
