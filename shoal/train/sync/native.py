"""Hands off: the script does its own exchange, with torch.distributed or whatever it likes; Shoal only launches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from shoal.train.api import Setting, State


class Native:
    """A Synchroniser that does nothing."""

    needs_gradient = False

    def __init__(self, setting: Setting) -> None:
        pass

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        return model

    def before_step(self, optimizer: Optimizer, skipped: bool = False) -> None:
        pass

    def after_step(self, optimizer: Optimizer) -> None:
        pass

    def finish(self) -> None:
        pass

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        pass

    def facts(self) -> Mapping[str, Any]:
        return {
            "learning_rate": "yours, unscaled",
            "staleness": "the script's own affair: nothing is exchanged for it",
            "bytes_per_step": 0,
            "buffers": "left alone",
        }
