"""What the server holds in memory: idle, and more for each running job."""

from __future__ import annotations

import time

from shoal._lib.clock import Deadline
from shoal.bench.figure import Figure, Target
from shoal.bench.meters import resident_mb
from shoal.bench.site import Site, site
from shoal.errors import ShoalError

JOBS = 20
START_SECONDS = 120.0
SETTLE_SECONDS = 5.0  # a few heartbeats' worth of waiting, so that what is held is held


def memory() -> list[Figure]:
    with site() as running:
        running.api.request("GET", "/jobs")
        time.sleep(SETTLE_SECONDS)
        idle = resident_mb(running.pid)
        _start_jobs(running)
        time.sleep(SETTLE_SECONDS)
        busy = resident_mb(running.pid)
    return [
        Figure("server.idle", idle, Target("<", 150, "MB")),
        Figure("server.per_job", (busy - idle) / JOBS, Target("<", 2, "MB"), note=f"{busy:.0f} MB with {JOBS} jobs"),
    ]


def _start_jobs(running: Site) -> None:
    for number in range(JOBS):
        running.command(["sleep", "600"], name=f"sleeper-{number}", resources={"cpu": 0.01})
    deadline = Deadline(START_SECONDS)
    while True:
        states = [line["state"] for line in running.active()]
        if states.count("running") == JOBS:
            return
        if deadline.over():
            raise ShoalError(f"only {states.count('running')} of {JOBS} jobs run after {START_SECONDS:g} s")
        time.sleep(0.2)
