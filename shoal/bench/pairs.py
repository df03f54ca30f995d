"""Two sides measured in turn: each pair has a ratio of its own, so that what the machine does besides hits both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Pairs:
    """What each side reached, pair by pair."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        return [mine / other for mine, other in zip(self.ours, self.theirs, strict=True)]

    @property
    def spread(self) -> str:
        """Between which ratios the middle half of the pairs lies: wide on a machine that is busy with other things."""
        low, _, high = quantiles(self.ratios, n=4)
        return f"{len(self.ratios)} pairs, half of them {low:.3f} … {high:.3f}"


def measure(count: int, ours: Callable[[], float], theirs: Callable[[], float]) -> Pairs:
    """Either side begins every other pair."""
    mine, other = [], []
    for number in range(count):
        if number % 2:
            other.append(theirs())
            mine.append(ours())
        else:
            mine.append(ours())
            other.append(theirs())
    return Pairs(tuple(mine), tuple(other))
