"""How long from `submit` to the first line of a command on two workers, seen by someone who follows the log."""

from __future__ import annotations

import time
from statistics import median

from shoal.bench.figure import Figure, Target
from shoal.bench.site import Site, site

TIMES = 15
END_SECONDS = 60.0


def launch_command() -> list[Figure]:
    with site() as running:
        _one(running)  # the first builds the shepherd's archive
        times = [_one(running) for _ in range(TIMES)]
    note = f"median of {TIMES}, slowest {max(times):.0f} ms"
    return [Figure("launch.command", median(times), Target("<", 700, "ms"), note=note)]


def _one(running: Site) -> float:
    began = time.perf_counter()
    job = running.command(["echo", "ready"], workers=2)
    lines = job.logs(follow=True)
    next(lines)
    taken = time.perf_counter() - began
    lines.close()
    job.wait(END_SECONDS)
    return taken * 1000
