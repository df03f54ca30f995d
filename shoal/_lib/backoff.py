"""How long to wait before the next try: doubling, bounded, with jitter so that many do not return at once."""

from __future__ import annotations

import random


def delay(tries: int, first: float, most: float, jitter: float = 0.25, rng: random.Random | None = None) -> float:
    """Seconds to wait after `tries` failures (0 gives `first`); never above `most`."""
    plain = min(most, first * (2.0 ** min(tries, 32)))
    spread = (rng or random).uniform(1.0 - jitter, 1.0)
    return float(plain * spread)
