"""What the training library costs on a GPU; refused by name where there is none."""

from __future__ import annotations

import shutil
from typing import Any

from shoal.bench.figure import Figure, Target
from shoal.bench.peer import run_script
from shoal.errors import ShoalError

SCRIPT = "shoal.bench.train.gpu"


def _measure(what: str) -> dict[str, Any]:
    if shutil.which("nvidia-smi") is None:
        raise ShoalError(
            f"gpu.{what} needs an NVIDIA card and there is no nvidia-smi here; run it on a machine with one"
        )
    return run_script(SCRIPT, what)


def gpu_world() -> list[Figure]:
    said = _measure("world")
    peer = f"plain {said['plain'] * 200:.2f} ms a step"
    return [Figure("gpu.world.one", said["plain"] / said["wrapped"], Target("≥", 0.98, "×"), peer, said["card"])]


def gpu_ps() -> list[Figure]:
    said = _measure("ps")
    peer = f"pinned copies there and back {said['copies'] * 1e3:.1f} ms"
    note = f"push and pull {said['seconds'] * 1e3:.1f} ms, two workers, 500 MB; {said['card']}"
    return [Figure("gpu.ps", said["copies"] / said["seconds"], Target("≥", 0.4, "×"), peer, note)]


def gpu_save() -> list[Figure]:
    said = _measure("save")
    peer = f"one copy to host memory {said['copy'] * 1e3:.1f} ms"
    note = f"held up for {said['held'] * 1e3:.1f} ms; {said['card']}"
    return [Figure("gpu.save", said["held"] / said["copy"], Target("≤", 1.1, "×"), peer, note)]
