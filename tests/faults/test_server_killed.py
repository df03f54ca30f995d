"""kill -9 of the server under load: every job ends as it should, no line lost or doubled, no gang started twice."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.live import Live, eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

JOBS = 20
LINES = 200

# Each rank says how often it was started, then counts: what arrives must be exactly that.
COUNTING = f"""
import os, time
name = os.environ["SHOAL_MEMBER"]
with open(name + ".starts", "a") as file:
    file.write("started\\n")
for number in range({LINES}):
    print("line", number, flush=True)
    time.sleep(0.03)
"""


def test_twenty_jobs_survive_the_servers_death(live: Live) -> None:
    jobs = [live.python(COUNTING, workers=1 + index % 2, resources={"cpu": 0.05}) for index in range(JOBS)]
    for job in jobs:
        live.wait_state(job, "running", seconds=120)
    for _ in range(2):
        live.kill()
        live.start()
        assert any(job.refresh().state == "running" for job in jobs)
    for job in jobs:
        live.wait_state(job, "succeeded", "failed", "stopped", seconds=180)
        assert (job.state, job.attempt) == ("succeeded", 1), job.data
    for job in jobs:
        for rank in job.ranks:
            assert live.lines(job, rank["name"]) == [f"line {number}" for number in range(LINES)]
            started = (live.home.work / job.id / f"{rank['name']}.starts").read_text()
            assert started == "started\n", "started twice"


def test_jobs_that_end_while_the_server_is_away_are_found_ended(live: Live, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    wait = f"while [ ! -e {flag} ]; do sleep 0.1; done; "
    good = live.submit(["sh", "-c", wait + "echo done"], resources={"cpu": 0.1})
    bad = live.submit(["sh", "-c", wait + "echo broken; exit 9"], resources={"cpu": 0.1})
    for job in (good, bad):
        live.wait_state(job, "running")
        eventually(lambda job=job: all(rank["pid"] for rank in job.refresh().ranks), 30, "the start of all ranks")
    pids = [rank["pid"] for job in (good, bad) for rank in job.ranks]
    live.kill()
    flag.touch()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 30, "their end while nobody listens")
    live.start()
    live.wait_state(good, "succeeded")
    live.wait_state(bad, "failed")
    assert (bad.reason, bad.exit_code) == ("exit_code", 9)
    assert live.lines(bad) == ["broken"]


def test_a_queue_survives_the_servers_death(live: Live) -> None:
    jobs = [live.submit(["sleep", "0.2"], resources={"cpu": 2}) for _ in range(8)]
    live.kill()
    live.start()
    for job in jobs:
        live.wait_state(job, "succeeded", seconds=120)
    assert [job.attempt for job in jobs] == [1] * 8


def test_the_port_survives_a_restart(live: Live) -> None:
    before = live.api.url
    live.kill()
    live.start()
    note = live.home.read_note()
    assert note is not None and note.url == before


def test_a_stop_asked_just_before_the_server_dies_is_carried_out_by_the_next(live: Live) -> None:
    job = live.submit([sys.executable, "-c", "import time; time.sleep(600)"], grace=1, resources={"cpu": 0.1})
    live.wait_state(job, "running")
    job.stop()
    live.kill()
    live.start()
    eventually(lambda: job.refresh().state == "stopped", 60, "the stop")
    assert job.reason == "user_stop"


def test_shepherds_find_a_server_that_had_to_take_another_port(live: Live) -> None:
    job = live.submit(["sh", "-c", "echo before; sleep 6; echo after"], resources={"cpu": 0.1})
    eventually(lambda: live.lines(job) == ["before"], 30, "the first line")
    port = int(live.api.url.rsplit(":", 1)[1])
    live.kill()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        live.start()
        assert not live.api.url.endswith(f":{port}")
        job.api = live.api
        live.wait_state(job, "succeeded")
    assert live.lines(job) == ["before", "after"]
