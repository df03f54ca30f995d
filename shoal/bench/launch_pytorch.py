"""How long from `submit` to the first line of a PyTorch script on two workers, against torchrun on the same script."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from shoal.bench import torchrun
from shoal.bench.figure import Figure, Target
from shoal.bench.site import Site, site

PAIRS = 7
END_SECONDS = 60.0


def launch_pytorch() -> list[Figure]:
    torchrun.check_torch()
    with site() as running:
        script = running.lay_out("first_line.py")
        torchrun.first_line_ms(script)  # both once, so that the files are in memory
        _one(running, script)
        ours, theirs = [], []
        for number in range(PAIRS):
            if number % 2:
                theirs.append(torchrun.first_line_ms(script))
                ours.append(_one(running, script))
            else:
                ours.append(_one(running, script))
                theirs.append(torchrun.first_line_ms(script))
    ratio = median(mine / other for mine, other in zip(ours, theirs, strict=True))
    peer = f"torchrun {median(theirs):.0f} ms"
    note = f"ours {median(ours):.0f} ms, {PAIRS} pairs"
    return [Figure("launch.pytorch", ratio, Target("≤", 1.0, "×"), peer, note)]


def _one(running: Site, script: Path) -> float:
    began = time.perf_counter()
    job = running.submit(script, workers=2)
    lines = job.logs(follow=True)
    first = next(lines)
    taken = time.perf_counter() - began
    lines.close()
    job.wait(END_SECONDS)
    assert first.text.startswith("ready"), first
    return taken * 1000
