"""What all strategies with parameter servers share: spaces, the same start for all, and the end.

One space for each optimizer of a unit, `<unit>.<number>`. What no optimizer steps (buffers, frozen parameters) is given
out once at the start, from worker-0, and is each worker's own from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer

from shoal.train import compress
from shoal.train.api import Setting, State
from shoal.train.errors import BadModel, BadOptimizer
from shoal.train.ps.applier import ADD
from shoal.train.ps.client import Named, Portion, Terms
from shoal.train.ps.dump import Dump
from shoal.train.ps.recipe import Recipe
from shoal.train.sync.ways import Averaged, Stepped, Summed, Way

_log = logging.getLogger("shoal.train")
REST_LIMIT = 64 << 20  # bytes of buffers and frozen parameters that are worth sending at the start


class Centralised:
    """A strategy whose parameters live on servers. What differs is the rule there, and who may step."""

    name = ""  # in `shoal.strategy`
    own: type[Summed] | type[Averaged] | None = None  # how an optimizer that stays on the worker is served

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._options = setting.options
        self._ways: dict[int, Way] = {}  # by identity of the optimizer
        self._rest = "there are none"
        self._finished = False
        self.needs_gradient = True

    # -- a synchroniser

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        recipes = [self._recipe(one) for one in optimizers]
        self._check(optimizers, recipes)
        try:
            for number, (optimizer, recipe) in enumerate(zip(optimizers, recipes, strict=True)):
                space = f"{self._setting.unit}.{number}"
                kind = self._kind(recipe)
                portion = self._portion(space, members(model, optimizer), Terms(self.name, kind.applier, recipe))
                self._ways[id(optimizer)] = self._way(kind, portion, optimizer)
                portion.open()
                self._ways[id(optimizer)].start()
            self._share_rest(model, optimizers)
        except BaseException:
            self._end(Portion.abandon)
            raise
        self.needs_gradient = any(way.pushes_gradients for way in self._ways.values())
        return model

    def before_step(self, optimizer: Optimizer, skipped: bool = False) -> None:
        way = self._ways[id(optimizer)]
        way.ready(self._setting.world.rank == 0)
        way.before(skipped)

    def after_step(self, optimizer: Optimizer) -> None:
        self._ways[id(optimizer)].after()

    def finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        try:
            for way in self._ways.values():
                way.flush()
        finally:
            self._end(Portion.leave)

    def state(self) -> State:
        """What the servers hold, from the first worker; what each has squeezed out or added up and not sent yet."""
        kept: dict[str, Any] = {"rank": self._setting.world.rank, "residuals": {}, "phases": {}, "spaces": {}}
        for way in self._ways.values():
            portion = way.portion
            kept["phases"][portion.space] = way.phase()
            if portion.squeezer is not None:
                kept["residuals"][portion.space] = portion.squeezer.state()
            if way.kept and self._setting.world.rank == 0:
                kept["spaces"][portion.space] = [
                    {"meta": dict(dump.meta), "tensors": dict(dump.tensors)} for dump in portion.dump()
                ]
        return kept

    def load(self, state: State) -> None:
        """A worker that comes to a training under way takes that, not the checkpoint."""
        ways = list(self._ways.values())
        # A worker that was not there then is given the first one's state; that one sends its residuals itself.
        own = state.get("rank") == self._setting.world.rank
        for way in ways:
            residual = state.get("residuals", {}).get(way.portion.space) if own else None
            if residual and way.portion.squeezer is not None:
                way.portion.squeezer.load(residual)
        for way in ways:
            if not way.portion.fresh:
                _log.info("%s joins a training under way, ahead of the checkpoint", self._setting.world.me)
            elif way.kept and self._setting.world.rank == 0:
                self._give(way, state.get("spaces", {}).get(way.portion.space))
            elif way.kept:
                way.portion.await_load()
            way.loaded()
            phase = state.get("phases", {}).get(way.portion.space) if own and way.portion.fresh else None
            if phase:
                way.resume(phase)

    def _give(self, way: Way, saved: Any) -> None:
        """The servers go on from the checkpoint; from its weights alone, where another strategy had made it."""
        if saved:
            way.portion.take([Dump(one["meta"], one["tensors"]) for one in saved])
        else:
            way.portion.refill()

    def facts(self) -> Mapping[str, Any]:
        portions = [way.portion for way in self._ways.values()]
        worst = max((one.layout.balance().worst for one in portions), default=1.0)
        here = sum(one.here for portion in portions for one in portion.servers)
        total = sum(len(portion.servers) for portion in portions)
        return {
            "learning_rate": self._learning_rate(),
            "staleness": self._staleness(),
            "bytes_per_step": round(sum(way.bytes_per_step for way in self._ways.values()) * self._sent()),
            "buffers": self._rest,
            "optimizer": ", ".join(self._stepper(way) for way in self._ways.values()),
            "servers": f"{len(self._setting.world.servers)}, the fullest with {worst:.3f} of the mean",
            "transport": "shared memory" if here == total else "TCP" if not here else "shared memory and TCP",
            "numbers": f"{', '.join(sorted({one.layout.dtype for one in portions}))} on the way and on the servers",
            "unused": "a parameter without a gradient counts as zero",
        }

    def _sent(self) -> float:
        """How much of what is pushed travels; within a machine nothing is squeezed."""
        near = all(portion.servers.near for portion in (way.portion for way in self._ways.values()))
        return 1.0 if near else compress.share(self._options)

    # -- what strategies say of themselves

    def _portion(self, space: str, found: Sequence[Named], terms: Terms) -> Portion:
        return Portion(self._setting, space, found, terms)

    def _way(self, kind: type[Way], portion: Portion, optimizer: Optimizer) -> Way:
        return kind(portion, optimizer)

    def _learning_rate(self) -> str:
        raise NotImplementedError

    def _staleness(self) -> Any:
        raise NotImplementedError

    # -- who steps

    def _recipe(self, optimizer: Optimizer) -> Recipe | None:
        return Recipe.of(optimizer)

    def _kind(self, recipe: Recipe | None) -> type[Way]:
        if recipe is not None:
            return Stepped
        assert self.own is not None
        return self.own

    def _check(self, optimizers: Sequence[Optimizer], recipes: Sequence[Recipe | None]) -> None:
        for optimizer, recipe in zip(optimizers, recipes, strict=True):
            if recipe is not None:
                continue
            name = type(optimizer).__name__
            if self.own is None:
                raise BadOptimizer(
                    f"{name} cannot run on a server, and {self.name} has the servers step: use one of torch.optim that "
                    "treats every element by itself (SGD, Adam, …), or ps-async, ps-ssp or ps-sync"
                )
            if self._options.get("compensate"):
                raise BadOptimizer(
                    f"{name} cannot run on a server, and compensate= works on gradients there: use one of torch.optim "
                    "that treats every element by itself (SGD, Adam, …), or leave compensate away"
                )
            if isinstance(optimizer, LBFGS) and (self.own is Averaged or len(optimizers) > 1):
                raise BadOptimizer(
                    "LBFGS evaluates its closure many times in a step: it needs a strategy where the worker steps by "
                    "itself (ps-async, ps-ssp, easgd, local-sgd), and a wrap of its own"
                )

    def _stepper(self, way: Way) -> str:
        name = type(way.optimizer).__name__
        return f"{name} on the {'servers' if isinstance(way, Stepped) else 'workers'}"

    # -- the beginning and the end

    def _share_rest(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """All begin with worker-0's buffers and frozen parameters, unless they are too large to be sent for that."""
        found = rest(model, optimizers)
        if not found:
            return
        size = sum(one.tensor.numel() * one.tensor.element_size() for one in found)
        if size > REST_LIMIT:
            found = [one for one in found if one.name in dict(model.named_buffers())]
            self._rest = "as worker-0 has them at the start, then each worker's own; frozen parameters must be equal"
        else:
            self._rest = "as worker-0 has them at the start, then each worker's own"
        if not found:
            return
        portion = self._portion(f"{self._setting.unit}.rest", found, Terms(self.name, ADD))
        try:
            portion.open()
            portion.pull()
        finally:
            portion.leave()

    def _end(self, go: Callable[[Portion], None]) -> None:
        for way in self._ways.values():
            go(way.portion)


def members(model: nn.Module, optimizer: Optimizer) -> list[Named]:
    """What an optimizer steps: each parameter once, under its first name in the model."""
    names = {id(one): name for name, one in model.named_parameters()}
    found: dict[int, Named] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.requires_grad:
                name = names.get(id(parameter), f"group {number} parameter {len(found)}")
                found.setdefault(id(parameter), Named(name, parameter, number))
    for one in found.values():
        if not one.tensor.is_floating_point():
            raise BadModel(
                f"parameter {one.name} is {one.tensor.dtype}; servers exchange real floating-point numbers only"
            )
    return list(found.values())


def rest(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Named]:
    """What no optimizer steps and a server can hold: buffers and frozen parameters."""
    stepped = {id(one.tensor) for optimizer in optimizers for one in members(model, optimizer)}
    every: dict[int, Named] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if id(tensor) not in stepped and tensor.numel() and not tensor.is_complex():
            every.setdefault(id(tensor), Named(name, tensor))
    return list(every.values())
