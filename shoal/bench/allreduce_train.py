"""The group of one machine against gloo, and data parallel steps against DistributedDataParallel over gloo. What is
measured runs as scripts of their own, in `bench/train`: both sides in the same processes, in turn."""

from __future__ import annotations

from statistics import median
from typing import Any

from shoal.bench.figure import Figure, Target
from shoal.bench.pairs import Pairs
from shoal.bench.peer import run_script

SIZES = ("1", "10", "100")  # megabytes
PAIRS = 15


def allreduce_2() -> list[Figure]:
    return _allreduce(2, 3)


def allreduce_4() -> list[Figure]:
    return _allreduce(4, 2)


def ddp_comm() -> list[Figure]:
    return [_ddp("comm", 1.5)]


def ddp_compute() -> list[Figure]:
    return [_ddp("compute", 0.99)]


def _allreduce(ranks: int, least: float) -> list[Figure]:
    """Milliseconds, so the ratio is that of their inverses."""
    said = run_script("shoal.bench.train.allreduce", ranks, *SIZES)
    figures = []
    for size in SIZES:
        pairs = _pairs(said[size], lambda ms: 1 / ms)
        here, there = median(said[size]["ours"]), median(said[size]["gloo"])
        note = f"ours {here:.2f} ms; {pairs.spread}"
        target = Target("≥", least, "×")
        figures.append(Figure(f"allreduce.{size}mb.{ranks}", pairs.ratio, target, f"gloo {there:.2f} ms", note))
    return figures


def _ddp(kind: str, least: float) -> Figure:
    said = run_script("shoal.bench.train.ddp", kind, PAIRS)
    pairs = _pairs(said, lambda speed: speed)
    note = f"ours {median(pairs.ours):.2f} steps/s; {pairs.spread}"
    return Figure(f"ddp.{kind}", pairs.ratio, Target("≥", least, "×"), f"gloo {median(pairs.theirs):.2f} steps/s", note)


def _pairs(said: dict[str, list[float]], rate: Any) -> Pairs:
    return Pairs(tuple(map(rate, said["ours"])), tuple(map(rate, said["gloo"])))
