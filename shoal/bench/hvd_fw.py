"""Horovod's interface against gloo, in the same processes, in turn: see `bench/fw`."""

from __future__ import annotations

from statistics import median

from shoal.bench.figure import Figure, Target
from shoal.bench.pairs import Pairs
from shoal.bench.peer import run_script

SIZES = ("1", "10", "100")  # megabytes
RANKS = 2


def allreduce() -> list[Figure]:
    """Milliseconds, so the ratio is that of their inverses."""
    said = run_script("shoal.bench.fw.hvd_allreduce", RANKS, *SIZES)
    figures = []
    for size in SIZES:
        ours, gloo = said[size]["ours"], said[size]["gloo"]
        pairs = Pairs(tuple(1 / ms for ms in ours), tuple(1 / ms for ms in gloo))
        name, note = f"fw.hvd.allreduce.{size}mb", f"ours {median(ours):.2f} ms; {pairs.spread}"
        figures.append(Figure(name, pairs.ratio, Target("≥", 2, "×"), f"gloo {median(gloo):.2f} ms", note))
    return figures
