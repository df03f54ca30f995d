"""Processes that die, hang, hide or refuse to go: each end has its reason, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from shoal.client.jobs import Job
from shoal.errors import ShoalError
from tests.support.live import Live, eventually, live_server, processes_of, shepherd_of, signal_process

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
CPU = {"cpu": 0.1}


def key(job: Job) -> str:
    return f"{job.id}-{job.refresh().attempt}"


def rank_pid(job: Job, name: str = "worker-0") -> int:
    return eventually(lambda: next((r["pid"] for r in job.refresh().ranks if r["name"] == name and r["pid"]), 0))


def running(live: Live, code: str = SLEEP, **keys: object) -> Job:
    job = live.python(code, resources=CPU, **keys)
    live.wait_state(job, "running")
    rank_pid(job)
    return job


def nobody_left(live: Live, gang: str) -> None:
    eventually(lambda: not processes_of(live.home, gang), 30, f"the end of all processes of {gang}")


def test_a_killed_shepherd_takes_its_ranks_along_and_the_job_is_tried_again(live: Live) -> None:
    job = running(live, workers=2, retries=1)
    first = key(job)
    signal_process(shepherd_of(live.home, first), signal.SIGKILL)
    nobody_left(live, first)
    eventually(lambda: job.refresh().attempt == 2 and job.state == "running", 60, "the second attempt")
    signal_process(shepherd_of(live.home, key(job)), signal.SIGKILL)
    live.wait_state(job, "failed")
    assert job.reason == "shepherd_lost" and "vanished" in job.message


def test_the_lines_a_killed_shepherd_had_spooled_still_arrive(live: Live) -> None:
    code = """
import os, time
for n in range(50): print("line", n, flush=True)
while not os.path.exists("go"): time.sleep(0.02)
for n in range(50, 100): print("line", n, flush=True)
open("said", "w").close()
time.sleep(600)
"""
    job = running(live, code, retries=0)
    eventually(lambda: len(live.lines(job)) == 50)
    gang, work = key(job), live.home.work / job.id
    live.kill()  # nobody takes lines now
    (work / "go").touch()
    eventually((work / "said").exists)
    spool = live.home.gangs / gang / "shepherd" / "spool" / "worker-0"
    eventually(lambda: b"line 99" in b"".join(file.read_bytes() for file in spool.iterdir()), 30, "the spooling")
    signal_process(shepherd_of(live.home, gang), signal.SIGKILL)
    live.start()
    live.wait_state(job, "failed")
    assert job.reason == "shepherd_lost"
    eventually(lambda: len(live.lines(job)) >= 100, 30, "the rest of the lines")
    assert live.lines(job) == [f"line {n}" for n in range(100)]


def test_a_killed_rank_fails_the_attempt_as_the_infrastructures_fault(live: Live) -> None:
    job = running(live, workers=2, retries=0)
    os.kill(rank_pid(job, "worker-1"), signal.SIGKILL)
    live.wait_state(job, "failed")
    assert job.reason == "killed" and "worker-1" in job.message
    nobody_left(live, key(job))


def test_a_killed_child_of_a_rank_is_the_scripts_own_affair(live: Live) -> None:
    code = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
print("child ended with", child.wait(), flush=True)
"""
    job = running(live, code)
    child = int(eventually(lambda: live.lines(job))[0])
    os.kill(child, signal.SIGKILL)
    live.wait_state(job, "succeeded")
    assert live.lines(job)[-1] == "child ended with -9"


def test_data_loader_children_do_not_outlive_their_rank(live: Live) -> None:
    code = """
import multiprocessing, os, time
def load():
    time.sleep(600)
if __name__ == "__main__":
    for _ in range(3):
        multiprocessing.get_context("fork").Process(target=load).start()
    print("up", flush=True)
    os._exit(0)
"""
    job = running(live, code)
    live.wait_state(job, "succeeded")
    nobody_left(live, key(job))


def test_a_stopped_rank_can_be_ended(live: Live) -> None:
    job = running(live, workers=2, grace=1)
    os.kill(rank_pid(job), signal.SIGSTOP)
    job.stop()
    live.wait_state(job, "stopped")
    nobody_left(live, key(job))


def test_a_stopped_shepherd_is_not_taken_for_dead_but_can_be_ended(live: Live) -> None:
    job = running(live, grace=1)
    shepherd = shepherd_of(live.home, key(job))
    signal_process(shepherd, signal.SIGSTOP)
    job.stop()
    live.wait_state(job, "stopped", seconds=60)
    nobody_left(live, key(job))


def test_a_script_that_ignores_sigterm_is_killed_after_the_grace(live: Live) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    job = running(live, code, grace=1)
    eventually(lambda: live.lines(job) == ["up"])
    job.stop()
    live.wait_state(job, "stopped")
    nobody_left(live, key(job))


def test_a_script_that_obeys_sigterm_may_use_the_grace(live: Live) -> None:
    code = """
import signal, sys, time
def save(*_):
    time.sleep(1); print("saved", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, save); print("up", flush=True); time.sleep(600)
"""
    job = running(live, code, grace=30)
    eventually(lambda: live.lines(job) == ["up"])
    job.stop()
    live.wait_state(job, "stopped")
    assert live.lines(job) == ["up", "saved"]


@pytest.mark.parametrize("way", ["ends by itself", "is stopped", "loses its shepherd"])
def test_a_script_that_forks_daemons_leaves_none_behind(live: Live, way: str) -> None:
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("up", flush=True)
time.sleep(float(sys.argv[1]))
"""
    job = live.python(code, "0.5" if way == "ends by itself" else "600", resources=CPU, grace=1, retries=0)
    eventually(lambda: live.lines(job) == ["up"])
    gang = key(job)
    if way == "is stopped":
        job.stop()
    elif way == "loses its shepherd":
        signal_process(shepherd_of(live.home, gang), signal.SIGKILL)
    live.wait_state(job, "succeeded", "stopped", "failed")
    nobody_left(live, gang)


def test_memory_over_the_limit_ends_the_rank_with_that_reason(live: Live) -> None:
    code = "import time\nhoard = []\nfor _ in range(400): hoard.append(bytearray(1 << 20)); time.sleep(0.01)"
    job = live.python(code, resources={"cpu": 0.1, "memory": "100MiB"}, retries=2)
    live.wait_state(job, "failed")
    assert (job.reason, job.attempt) == ("out_of_memory", 1)


def test_a_python_error_is_not_tried_again_unless_asked(live: Live) -> None:
    job = live.python("raise ValueError('no')", retries=2, resources=CPU)
    live.wait_state(job, "failed")
    assert (job.reason, job.attempt, job.exit_code) == ("python_error", 1, 1)
    assert "ValueError: no" in job.message
    asked = live.python("raise ValueError('no')", retries=1, retry_on="any", resources=CPU)
    live.wait_state(asked, "failed")
    assert asked.attempt == 2


def test_a_missing_program_says_so(live: Live) -> None:
    job = live.submit(["no-such-program-anywhere"], resources=CPU)
    live.wait_state(job, "failed")
    assert job.reason == "command_missing" and "no-such-program-anywhere" in job.message


def test_max_duration_stops_a_job_and_an_overrun_is_an_event(live: Live) -> None:
    job = live.python(SLEEP, estimate=1, max_duration=3, grace=1, resources=CPU)
    live.wait_state(job, "stopped")
    assert job.reason == "max_duration"
    assert "overrun" in [event["kind"] for event in job.events()]


def test_a_rank_whose_role_restarts_comes_back_alone(live: Live) -> None:
    code = """
import os, time
print(os.environ["SHOAL_MEMBER"], os.getpid(), flush=True)
time.sleep(600)
"""
    job = live.submit(
        roles={"worker": {"count": 2, "on_lost": "restart", "command": [sys.executable, "-c", code], "resources": CPU}},
    )
    live.wait_state(job, "running")
    first, other = rank_pid(job, "worker-1"), rank_pid(job, "worker-0")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: rank_pid(job, "worker-1") not in (0, first), 30, "the new worker-1")
    assert rank_pid(job, "worker-0") == other and job.refresh().attempt == 1
    job.stop(grace=0.5)
    live.wait_state(job, "stopped")


def test_a_role_that_continues_does_without_its_lost_rank(live: Live) -> None:
    code = "import os, time; time.sleep(600 if os.environ['SHOAL_RANK'] == '1' else 4)"
    role = {"count": 2, "on_lost": "continue", "command": [sys.executable, "-c", code], "resources": CPU}
    job = live.submit(roles={"worker": role})
    live.wait_state(job, "running")
    os.kill(rank_pid(job, "worker-1"), signal.SIGKILL)
    live.wait_state(job, "succeeded")
    assert {rank["name"]: rank["state"] for rank in job.ranks} == {"worker-0": "ended", "worker-1": "gone"}


def test_a_job_that_asks_for_a_labelled_node_runs_there(tmp_path: Path) -> None:
    with live_server(tmp_path / "home", "--nodes", "2", "--cpus", "1", "--labels", "rack=r1") as live:
        job = live.submit(["sh", "-c", "echo $SHOAL_NODE"], labels={"rack": "r1", "node": "local-1"}, resources=CPU)
        live.wait_state(job, "succeeded")
        assert live.lines(job) == ["local-1"]
        with pytest.raises(ShoalError, match="rack=r9"):
            live.submit(["true"], labels={"rack": "r9"}, resources=CPU)


# What gloo does in a few runs of a hundred: the script has ended, then a thread of the library takes the process down.
ABORT_AT_EXIT = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
print("done", flush=True)
os.write(2, b"terminate called without an active exception\\n")
"""
ABORT_AT_WORK = """
import os
os.write(2, b"terminate called without an active exception\\n")
os.abort()
"""


@pytest.mark.parametrize(("code", "state"), [(ABORT_AT_EXIT, "succeeded"), (ABORT_AT_WORK, "failed")])
def test_an_abort_at_exit_is_no_failure_and_one_at_work_is(live: Live, tmp_path: Path, code: str, state: str) -> None:
    (tmp_path / "train.py").write_text(code)
    spec = {"script": "train.py", "in_place": True, "environment": sys.executable, "resources": CPU, "retries": 0}
    job = Job(live.api, live.api.request("POST", "/jobs", json={"spec": spec, "in_place": str(tmp_path)}))
    live.wait_state(job, "succeeded", "failed")
    assert job.state == state, job.data
