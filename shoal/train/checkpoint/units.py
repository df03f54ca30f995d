"""What a checkpoint holds of one call of `wrap`: the model under the user's names, its optimizers, what the strategy
keeps, and averages. A checkpoint of another model is refused with the first difference.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train.api import Partition, State
from shoal.train.checkpoint.parts import EACH, SHARED, WHOLE
from shoal.train.errors import BadCheckpoint

if TYPE_CHECKING:
    from shoal.train.checkpoint.average import Averages
    from shoal.train.checkpoint.keeper import Keeper
    from shoal.train.unit import Unit

_log = logging.getLogger("shoal.train")


def add_unit(keeper: Keeper, unit: Unit, averages: Averages | None) -> None:
    """Adds everything of the unit, in the order in which it must be loaded."""
    number = unit.number
    if unit.partition is not None:
        cut = _Cut(unit.partition, unit.model, len(unit.optimizers))
        keeper.add(f"model.{number}", cut.weights, cut.take, scope=SHARED, file=f"model-{number}", needed=True)
        for place in range(len(unit.optimizers)):
            state, load = partial(cut.optimizer, place), partial(cut.load, place)
            keeper.add(f"optimizer.{number}.{place}", state, load, scope=SHARED, needed=True)
    else:
        _add_plain(keeper, unit)
    if averages is not None:
        scope = WHOLE if unit.partition is None else SHARED
        mean = _Mean(averages)
        keeper.add(f"averaged.{number}", averages.weights, mean.take, scope=scope, file=f"averaged-{number}")
        keeper.add(f"averages.{number}", averages.state, mean.load, scope=scope)


def _add_plain(keeper: Keeper, unit: Unit) -> None:
    number, model = unit.number, unit.model
    scope = EACH if keeper.apart else WHOLE
    keeper.add(
        f"model.{number}", model.state_dict, lambda state: _load_model(model, state), scope=scope,
        file=f"model-{number}", needed=True,
    )  # fmt: skip
    for place, optimizer in enumerate(unit.optimizers):
        one = _Stepper(optimizer, keeper)
        keeper.add(f"optimizer.{number}.{place}", one.state, one.load, scope=scope, needed=True)
    if unit.sync is not None:
        keeper.add(f"sync.{number}", unit.sync.state, unit.sync.load, scope=EACH)


def first_difference(saved: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """What tells two models apart, in words; None when they are alike."""
    for name, value in here.items():
        if name not in saved:
            return f"{name!r} is not in the checkpoint"
        if _kind(saved[name]) != _kind(value):
            return f"{name!r} is {_kind(saved[name])} in the checkpoint and {_kind(value)} here"
    more = next((name for name in saved if name not in here), None)
    return None if more is None else f"{more!r} of the checkpoint is not in the model"


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return "no tensor"


def _refuse_another(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    difference = first_difference(saved, here)
    if difference:
        raise BadCheckpoint(
            f"the checkpoint is of another model: {difference}; use the model it was made with, or another folder of "
            "outputs"
        )


def _load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    _refuse_another(state, model.state_dict())
    model.load_state_dict(state)


class _Stepper:
    """An optimizer, with its class, because two classes may have states that look alike."""

    def __init__(self, optimizer: Optimizer, keeper: Keeper) -> None:
        self._optimizer, self._keeper = optimizer, keeper
        self._said = False

    def state(self) -> State:
        driven = any("initial_lr" in group for group in self._optimizer.param_groups)
        if driven and not self._said and not self._keeper.holds("own."):
            self._said = True
            _log.warning("a scheduler drives the learning rate and is not in the checkpoint: run.remember(scheduler=…)")
        return {"kind": type(self._optimizer).__name__, **self._optimizer.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        kind, here = state["kind"], type(self._optimizer).__name__
        if kind != here:
            raise BadCheckpoint(
                f"the checkpoint was made with {kind} and the script has {here}: use the same optimizer"
            )
        try:
            self._optimizer.load_state_dict({key: value for key, value in state.items() if key != "kind"})
        except ValueError as wrong:
            raise BadCheckpoint(
                f"the checkpoint's {kind} differs from the script's: {wrong}; make it as it was"
            ) from wrong


class _Cut:
    """A model in parts: its weights and the optimizers' state come apart and go back together. Both are written as
    those of a model that is not cut, so that either can go on from the other's checkpoint."""

    def __init__(self, partition: Partition, model: nn.Module, optimizers: int) -> None:
        self._partition, self._model, self._optimizers = partition, model, optimizers
        self._taken: Mapping[str, Tensor] = {}
        self._came: dict[int, Mapping[str, Any]] = {}
        self._told: list[Mapping[str, Any]] = []

    def weights(self) -> Mapping[str, Tensor]:
        return self._partition.model_state(self._model)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        _refuse_another(weights, self.weights())
        self._taken = weights

    def optimizer(self, place: int) -> State:
        from shoal.train.partition.whole import indexed

        if place == 0:  # all are asked for at once, because asking is collective
            self._told = list(self._partition.state()["optimizers"])
        return indexed(self._told[place])

    def load(self, place: int, state: Mapping[str, Any]) -> None:
        from shoal.train.partition.whole import named

        self._came[place] = state
        if len(self._came) == self._optimizers:
            here = self._partition.state()["optimizers"]
            every = [named(self._came[at], one) for at, one in enumerate(here)]
            self._partition.load(self._taken, {"optimizers": every})
            self._taken, self._came = {}, {}


class _Mean:
    """Likewise, the averaged weights and their number."""

    def __init__(self, averages: Averages) -> None:
        self._averages = averages
        self._taken: Mapping[str, Tensor] = {}

    def take(self, weights: Mapping[str, Tensor]) -> None:
        self._taken = weights

    def load(self, state: State) -> None:
        self._averages.load(self._taken, state)
        self._taken = {}
