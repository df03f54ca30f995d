"""What the training library costs a script that runs alone."""

from __future__ import annotations

from shoal.bench.figure import Figure, Target
from shoal.bench.peer import run_script


def world_one() -> list[Figure]:
    said = run_script("shoal.bench.train.world_one")
    peer = f"the plain script {said['plain']:.0f} steps/s"
    return [Figure("world.one", said["ratio"], Target("≥", 0.98, "×"), peer, f"wrapped {said['wrapped']:.0f} steps/s")]
