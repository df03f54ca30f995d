"""How fast a queue empties: 500 jobs of two processes that end at once, all waiting behind one that holds the machine.

The clock runs from the moment the place becomes free until the last of them has ended, by the server's own records.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from shoal._lib.clock import Deadline
from shoal.bench.figure import Figure, Target
from shoal.bench.site import Site, site
from shoal.client.jobs import Job
from shoal.errors import ShoalError

JOBS = 500
CPUS = 2
LIMIT = 300.0  # seconds
_LOOK = 0.5  # seconds between looks, so that looking costs nothing


def drain() -> list[Figure]:
    with site({"cpus": CPUS}) as running:
        began = _hold_and_fill(running)
        ended = _until_empty(running)
    rate = JOBS / (ended - began)
    return [Figure("drain", rate, Target("≥", 10, "jobs/s"), note=f"{JOBS} jobs in {ended - began:.1f} s")]


def _hold_and_fill(running: Site) -> float:
    """Fills the queue behind a job that holds all CPUs; returns when that one has ended, in seconds since the epoch."""
    free = running.folder / "free"
    wait = f"until [ -e {free} ]; do sleep 0.05; done"
    holder = running.command(["sh", "-c", wait], name="holder", resources={"cpu": CPUS})
    next(one for one in holder.watch(60) if one.state == "running")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: _submit(running), range(JOBS)))
    free.touch()
    return float(holder.wait(60).ended_at or 0.0)


def _submit(running: Site) -> Job:
    return running.command(["true"], name="one-shot", workers=2, resources={"cpu": 0.1})


def _until_empty(running: Site) -> float:
    """When the last one ended."""
    deadline = Deadline(LIMIT)
    while running.active():
        if deadline.over():
            raise ShoalError(f"{len(running.active())} of {JOBS} jobs were still there after {LIMIT:g} s")
        time.sleep(_LOOK)
    ends = _ends(running)
    if len(ends) != JOBS:
        raise ShoalError(f"{len(ends)} of {JOBS} jobs succeeded; see why the others did not before trusting a rate")
    return max(ends)


def _ends(running: Site) -> list[float]:
    asked = {"state": "succeeded", "name": "one-shot", "limit": 500}
    page = running.api.request("GET", "/jobs", params=asked)
    return [float(line["ended_at"]) for line in page["jobs"]]
