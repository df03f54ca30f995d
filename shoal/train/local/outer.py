"""What is done with the mean change of a round: the outer step, on flat tensors. Pure arithmetic.

anchor is where all replicas stood after the round before, Δ = mean(anchor − θ) how far they went since.

average   anchor − Δ, which is the mean of the replicas (local SGD: Stich, ICLR 2019, 1805.09767)
nesterov  b ← m·b + Δ; anchor − lr·(Δ + m·b), as torch.optim.SGD does it; the first step moves lr·(1+m)·Δ
          (DiLoCo: Douillard et al. 2023, 2311.08105)
slowmo    u ← β·u + Δ/γ; anchor − α·γ·u, with γ the inner rate (Wang et al., ICLR 2020, 1910.00643)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoal.train.flat import Flat

AVERAGE, NESTEROV, SLOWMO = "average", "nesterov", "slowmo"


@dataclass
class Outer:
    """The outer step of one fragment, with its momentum."""

    kind: str = AVERAGE
    rate: float = 1.0
    momentum: float = 0.0
    buffers: list[Tensor] = field(default_factory=list)
    gammas: list[float] = field(default_factory=list)  # slowmo: the inner rate of each tensor in the round before

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Outer:
        if options.get("slowmo"):
            return cls(SLOWMO, float(options["slowmo_lr"]), float(options["slowmo"]))
        if options["outer"] == NESTEROV:
            return cls(NESTEROV, float(options["outer_lr"]), float(options["outer_momentum"]))
        return cls()

    def step(self, anchor: list[Tensor], change: Sequence[Tensor], layout: Flat, gammas: Sequence[float]) -> None:
        """Moves the anchor by the mean change, in place."""
        if self.kind == AVERAGE:
            torch._foreach_sub_(anchor, list(change))
            return
        if not self.buffers:
            self.buffers = [torch.zeros_like(one) for one in anchor]
        if self.kind == SLOWMO:
            self._rescale(layout, gammas)
        torch._foreach_mul_(self.buffers, self.momentum)
        torch._foreach_add_(self.buffers, list(change))
        move = self.buffers
        if self.kind == NESTEROV:
            move = list(torch._foreach_add(list(change), self.buffers, alpha=self.momentum))
        torch._foreach_add_(anchor, move, alpha=-self.rate)

    def _rescale(self, layout: Flat, gammas: Sequence[float]) -> None:
        """The buffer holds γ·u. When the inner rate has changed it is brought to the new one: u itself stays."""
        if self.gammas:
            ratios = [new / old if old else 0.0 for new, old in zip(gammas, self.gammas, strict=True)]
            if any(ratio != 1.0 for ratio in ratios):
                torch._foreach_mul_(layout.views(self.buffers), ratios)
        self.gammas = list(gammas)

    def state(self) -> dict[str, Any]:
        return {"buffers": [one.clone() for one in self.buffers], "gammas": list(self.gammas)}

    def load(self, state: Mapping[str, Any], like: Sequence[Tensor]) -> None:
        self.buffers = [one.to(other, copy=True) for one, other in zip(state["buffers"], like, strict=False)]
        self.gammas = [float(one) for one in state["gammas"]]
