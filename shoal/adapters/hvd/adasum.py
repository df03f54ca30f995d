"""Adasum: sums gradients so that what two workers agree on counts once and what they do not, fully.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021. Of two gradients,

    adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

which is a + b where they are orthogonal and their mean where they are parallel. More than two are combined in pairs,
as a tree. Invariant: symmetric, and every worker computes the same tree, so the results are bit-equal. Cost: every
worker gathers all gradients, n times the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def combined(parts: Sequence[Any]) -> Any:
    """Of all workers' arrays, in the order of ranks; their number must be a power of two."""
    level = [np.asarray(part) for part in parts]
    while len(level) > 1:
        level = [_pair(level[at], level[at + 1]) for at in range(0, len(level), 2)]
    return level[0]


def _pair(one: Any, other: Any) -> Any:
    """Dots are taken in double precision: gradients may be tiny."""
    a, b = one.reshape(-1).astype(np.float64), other.reshape(-1).astype(np.float64)
    dot, left, right = float(a @ b), float(a @ a), float(b @ b)
    mine = 1.0 - dot / (2.0 * left) if left else 1.0
    theirs = 1.0 - dot / (2.0 * right) if right else 1.0
    return (mine * a + theirs * b).reshape(one.shape).astype(one.dtype)
