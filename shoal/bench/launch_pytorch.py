"""How long from `submit` to the first line of a PyTorch script on two workers, against torchrun on the same script."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from shoal.bench import torchrun
from shoal.bench.figure import Figure, Target
from shoal.bench.pairs import measure
from shoal.bench.site import Site, site

PAIRS = 7
END_SECONDS = 60.0


def launch_pytorch() -> list[Figure]:
    torchrun.check_torch()
    with site() as running:
        script = running.lay_out("first_line.py")
        torchrun.first_line_ms(script)  # both once, so that the files are in memory
        _one(running, script)
        pairs = measure(PAIRS, lambda: _one(running, script), lambda: torchrun.first_line_ms(script))
    peer = f"torchrun {median(pairs.theirs):.0f} ms"
    note = f"ours {median(pairs.ours):.0f} ms, {pairs.spread}"
    return [Figure("launch.pytorch", pairs.ratio, Target("≤", 1.0, "×"), peer, note)]


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
