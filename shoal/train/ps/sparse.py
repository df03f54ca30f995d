"""Optimizers for the rows of a table that a step touched: SGD, Adagrad, Adam. The others' state does not move.

Rows come as (n, 1 + states, dim): the values first, then the optimizer's state. Formulas are those of torch.optim (SGD,
Adagrad, SparseAdam); Adam's bias correction counts the table's updates, as SparseAdam counts its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.catalogue import nearest
from shoal.errors import UnknownName

Step = Callable[[Tensor, Tensor, int, Mapping[str, float]], None]


class SparseOptimizer:
    """One of them with its settings; `hyper` of a step lies over them."""

    def __init__(self, name: str, states: int, settings: Mapping[str, float], step: Step) -> None:
        self.name, self.states, self.settings = name, states, dict(settings)
        self._step = step

    def begin(self, rows: Tensor) -> None:
        """Puts the state of fresh rows in order."""
        if self.name == "adagrad":
            rows[:, 1] = self.settings["initial"]

    def step(self, rows: Tensor, grads: Tensor, count: int, hyper: Mapping[str, float]) -> None:
        """In place; `count` is the number of this update, from 1."""
        self._step(rows, grads, count, {**self.settings, **hyper})


def _sgd(rows: Tensor, grads: Tensor, count: int, hyper: Mapping[str, float]) -> None:
    rows[:, 0].sub_(grads, alpha=hyper["lr"])


def _adagrad(rows: Tensor, grads: Tensor, count: int, hyper: Mapping[str, float]) -> None:
    rows[:, 1].addcmul_(grads, grads)
    rows[:, 0].addcdiv_(grads, rows[:, 1].sqrt().add_(hyper["eps"]), value=-hyper["lr"])


def _adam(rows: Tensor, grads: Tensor, count: int, hyper: Mapping[str, float]) -> None:
    first, second = hyper["beta1"], hyper["beta2"]
    rows[:, 1].lerp_(grads, 1 - first)
    rows[:, 2].mul_(second).addcmul_(grads, grads, value=1 - second)
    rate = hyper["lr"] * (1 - second**count) ** 0.5 / (1 - first**count)
    rows[:, 0].addcdiv_(rows[:, 1], rows[:, 2].sqrt().add_(hyper["eps"]), value=-rate)


_KINDS: dict[str, tuple[int, dict[str, float], Step]] = {
    "sgd": (0, {"lr": 0.01}, _sgd),
    "adagrad": (1, {"lr": 0.01, "eps": 1e-10, "initial": 0.0}, _adagrad),
    "adam": (2, {"lr": 0.001, "eps": 1e-8, "beta1": 0.9, "beta2": 0.999}, _adam),
}
NAMES = tuple(_KINDS)


def make(name: str, settings: Mapping[str, float]) -> SparseOptimizer:
    """By name; UnknownName with the nearest otherwise."""
    if name not in _KINDS:
        raise UnknownName("sparse optimizer", name, NAMES, nearest(name, NAMES))
    states, defaults, step = _KINDS[name]
    return SparseOptimizer(name, states, {**defaults, **settings}, step)


def like(optimizer: Optimizer) -> tuple[str, dict[str, float]]:
    """The sparse optimizer that goes with a dense one, and its settings; adagrad where there is none of its kind."""
    group: dict[str, Any] = optimizer.param_groups[0]
    lr = float(group["lr"])
    if isinstance(optimizer, torch.optim.SGD):
        return "sgd", {"lr": lr}
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.SparseAdam)):
        first, second = group["betas"]
        return "adam", {"lr": lr, "eps": float(group["eps"]), "beta1": float(first), "beta2": float(second)}
    if isinstance(optimizer, torch.optim.Adagrad):
        return "adagrad", {
            "lr": lr,
            "eps": float(group["eps"]),
            "initial": float(group.get("initial_accumulator_value", 0.0)),
        }
    return "adagrad", {"lr": lr}
