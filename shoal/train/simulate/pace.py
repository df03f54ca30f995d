"""How long workers compute, in virtual seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Seconds = Callable[[int, int, random.Random], float]  # (worker, its iteration, chance) → how long it computes


def steady(seconds: float = 1.0) -> Seconds:
    """Everybody alike: the workers finish in turn."""
    return lambda worker, step, chance: seconds


def wavering(mean: float = 1.0, spread: float = 0.3) -> Seconds:
    """Lognormal with this mean; `spread` is the deviation of its logarithm."""
    return lambda worker, step, chance: mean * chance.lognormvariate(-spread * spread / 2, spread)


def erratic(mean: float = 1.0) -> Seconds:
    """Exponential: no memory, long tails."""
    return lambda worker, step, chance: chance.expovariate(1.0 / mean)


def slowed(by: float, who: Sequence[int], others: Seconds | None = None) -> Seconds:
    """Some take `by` times as long as the others."""
    base, slow = others or steady(), frozenset(who)
    return lambda worker, step, chance: base(worker, step, chance) * (by if worker in slow else 1.0)
