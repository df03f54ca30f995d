"""Two runs of one script take turns, block by block, so that what the machine does besides hits both alike."""

import os
import time
from collections.abc import Callable
from pathlib import Path

PAUSE = 0.005  # seconds between two looks for a turn
LIMIT = 300.0  # seconds without one, after which whoever gives them has gone


def take_turns(step: Callable[[], object], rank: int) -> None:
    """Steps when it is this side's turn, as often as it is told to, until it is told to end; rank 0 says how fast."""
    folder, side = Path(os.environ["BENCH_TURNS"]), os.environ["BENCH_SIDE"]
    (folder / f"{side}.{rank}.ready").touch()
    number = 0
    while (steps := _turn(folder, folder / f"{side}.{number}.go")) is not None:
        began = time.perf_counter()
        for _ in range(steps):
            step()
        taken = time.perf_counter() - began
        if rank == 0:
            draft = folder / f"{side}.{number}.draft"
            draft.write_text(repr(steps / taken))
            draft.rename(folder / f"{side}.{number}.done")
        number += 1


def _turn(folder: Path, go: Path) -> "int | None":
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        if go.exists():
            return int(go.read_text())
        if (folder / "end").exists():
            return None
        time.sleep(PAUSE)
    raise SystemExit("nobody gives turns any more")
