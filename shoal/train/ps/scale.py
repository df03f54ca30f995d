"""How much a stale change still counts: a positive number that never grows with staleness, and 1 for tau <= 1.

tau is the number of updates that the parameters have seen since the ones a gradient was computed on. The scale
multiplies the change of the parameters, never the optimizer's own learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Scale = Callable[[int], float]


def none(tau: int) -> float:
    """A stale change counts in full."""
    return 1.0


def inverse() -> Scale:
    """1 / tau (Zhang et al., Staleness-aware Async-SGD, IJCAI'16): fresh and one update old share a rate."""
    return lambda tau: 1.0 / max(tau, 1)


def poly(a: float) -> Scale:
    """tau ** -a: the polynomial of FedAsync (Xie et al. 2019), moved by one so that tau <= 1 counts in full."""
    return lambda tau: float(max(tau, 1)) ** -a


def hinge(a: float, b: float) -> Scale:
    """1 up to tau = b, then 1 / (a (tau - b) + 1) (FedAsync; b below 1 counts as 1)."""
    edge = max(b, 1.0)
    return lambda tau: 1.0 if tau <= edge else 1.0 / (a * (tau - edge) + 1.0)


def of(options: Mapping[str, Any]) -> Scale:
    """The scale that a strategy's options ask for; `none` where it has no such option."""
    name = options.get("scale", "none")
    if name == "inverse":
        return inverse()
    if name == "poly":
        return poly(float(options["a"]))
    if name == "hinge":
        return hinge(float(options["a"]), float(options["b"]))
    return none
