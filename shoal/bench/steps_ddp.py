"""What supervision costs a training: steps a second of one DDP script under Shoal and under torchrun, in turn."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from shoal.bench import torchrun
from shoal.bench.figure import Figure, Target
from shoal.bench.pairs import measure
from shoal.bench.site import Site, site
from shoal.errors import ShoalError

PAIRS = 16
WARM_UP, STEPS = 30, 300
LIMIT = 180.0  # seconds for one run
SAID = "steps_per_s"


def steps_ddp() -> list[Figure]:
    torchrun.check_torch()
    with site() as running:
        script = running.lay_out("ddp.py")
        pairs = measure(PAIRS, lambda: _shoal(running, script), lambda: _torchrun(script))
    peer = f"torchrun {median(pairs.theirs):.1f} steps/s"
    note = f"ours {median(pairs.ours):.1f} steps/s, {pairs.spread}"
    return [Figure("steps.ddp", pairs.ratio, Target("≥", 0.99, "×"), peer, note)]


def _arguments() -> list[str]:
    return [str(WARM_UP), str(STEPS)]


def _torchrun(script: Path) -> float:
    return _speed(torchrun.output(script, _arguments()))


def _shoal(running: Site, script: Path) -> float:
    job = running.submit(script, workers=2, args=_arguments()).wait(LIMIT)
    return _speed("\n".join(line.text for line in job.logs()))


def _speed(output: str) -> float:
    for line in output.splitlines():
        if line.startswith(SAID):
            return float(line.split()[1])
    raise ShoalError(f"the script did not say its speed; its output was:\n{output[-2000:]}")
