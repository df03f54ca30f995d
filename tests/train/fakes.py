"""A synchroniser that only remembers: what it was told, and the gradients it saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train.unit import trained


class Remembers:
    """Keeps a copy of the gradients at `before_step`. `steps_here=False` takes them away, as a server's client does."""

    def __init__(self, needs_gradient: bool = True, steps_here: bool = True) -> None:
        self.needs_gradient, self.steps_here = needs_gradient, steps_here
        self.seen: list[list[Tensor | None]] = []
        self.calls: list[str] = []
        self._away: list[tuple[Tensor, Tensor | None]] = []

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        self.calls.append("attach")
        return model

    def before_step(self, optimizer: Optimizer, skipped: bool = False) -> None:
        self.calls.append("before")
        every = trained(optimizer)
        self.seen.append([None if one.grad is None else one.grad.clone() for one in every])
        if not self.steps_here:
            self._away = [(one, one.grad) for one in every]
            for one in every:
                one.grad = None

    def after_step(self, optimizer: Optimizer) -> None:
        self.calls.append("after")
        for one, grad in self._away:
            one.grad = grad
        self._away = []

    def finish(self) -> None:
        self.calls.append("finish")

    def state(self) -> Mapping[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        self.calls.append("load")

    def facts(self) -> Mapping[str, Any]:
        return {"learning_rate": "nobody", "staleness": 0, "bytes_per_step": 8, "buffers": "left alone"}
