"""One call of `wrap`: the model, its optimizers, and what carries the strategy out for them. Knows what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from shoal.train.api import Partition, Synchroniser
from shoal.train.errors import BadModel, BadOptimizer, TrainError

MOST_NAMED = 3  # parameters named in a message


@dataclass
class Unit:
    """What `wrap` was given and what it made of it. Exactly one of `sync` and `partition` is set, or none of them in a
    world of one."""

    number: int
    given: nn.Module  # the user's
    model: nn.Module  # the one to call
    optimizers: tuple[Optimizer, ...]
    sync: Synchroniser | None = None
    partition: Partition | None = None

    def owns(self, model: object) -> bool:
        return model is self.model or model is self.given


def check(model: object, optimizers: Sequence[object], before: Sequence[Unit]) -> None:
    """Refuses what cannot be trained: BadModel or BadOptimizer."""
    if not isinstance(model, nn.Module):
        raise BadModel(f"wrap was given {_kind(model)} as the model: call run.wrap(model, optimizer) with an nn.Module")
    for optimizer in optimizers:
        _check_kind(optimizer)
    _check_parameters(model)
    if not optimizers:
        raise BadOptimizer(
            "wrap was given no optimizer: the exchange happens around its step, so call run.wrap(model, optimizer)"
        )
    known = {id(one): name for name, one in model.named_parameters()}
    for optimizer in optimizers:
        assert isinstance(optimizer, Optimizer)
        _check_covers(optimizer, known)
    _check_new(model, optimizers, before)


def trained(optimizer: Optimizer) -> list[Tensor]:
    """The parameters an optimizer steps: each once, however often it is tied; frozen ones are not."""
    seen: dict[int, Tensor] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                seen.setdefault(id(parameter), parameter)
    return list(seen.values())


def names(model: nn.Module, parameters: Iterable[Tensor]) -> list[str]:
    """The names under which the model knows the parameters; the first name of a tied one."""
    known = {id(one): name for name, one in model.named_parameters()}
    return [known.get(id(one), "?") for one in parameters]


def untrained(unit: Unit) -> list[str]:
    """Parameters that could be trained but that no optimizer steps."""
    stepped = {id(one) for optimizer in unit.optimizers for one in trained(optimizer)}
    return [name for name, one in unit.given.named_parameters() if one.requires_grad and id(one) not in stepped]


def parameter_bytes(optimizers: Iterable[Optimizer]) -> int:
    return sum(one.numel() * one.element_size() for optimizer in optimizers for one in trained(optimizer))


def fingerprint(model: nn.Module) -> str:
    """The same for models with the same parameters: names, shapes, kinds of number."""
    told = [[name, list(one.shape), str(one.dtype), one.requires_grad] for name, one in model.named_parameters()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _check_kind(optimizer: object) -> None:
    if isinstance(optimizer, Optimizer):
        return
    if isinstance(optimizer, (list, tuple)):
        raise BadOptimizer(
            "wrap was given a list: write the optimizers one after another, run.wrap(model, *optimizers)"
        )
    if hasattr(optimizer, "optimizer") and hasattr(optimizer, "step"):
        raise BadOptimizer(f"wrap was given {_kind(optimizer)}: a scheduler stays as it is, wrap only its optimizer")
    raise BadOptimizer(f"wrap was given {_kind(optimizer)} as an optimizer: it takes a torch.optim.Optimizer")


def _check_parameters(model: nn.Module) -> None:
    every = list(model.named_parameters())
    if not every:
        raise BadModel(f"{_kind(model)} has no parameters: there is nothing to train; wrap the model that has some")
    if not any(one.requires_grad for _, one in every):
        raise BadModel(
            f"all {len(every)} parameters of {_kind(model)} are frozen: set requires_grad on those to be trained"
        )
    lazy = [name for name, one in every if is_lazy(one)]
    if lazy:
        raise BadModel(f"{_named(lazy)} of {_kind(model)} have no shape yet: run one batch through it before wrap")


def _check_covers(optimizer: Optimizer, known: dict[int, str]) -> None:
    steps = trained(optimizer)
    foreign = [one for one in steps if id(one) not in known]
    if foreign:
        raise BadOptimizer(
            f"{type(optimizer).__name__} steps {len(foreign)} parameters that are not the model's (the first has shape "
            f"{tuple(foreign[0].shape)}): make it over model.parameters(), and wrap all that it steps as one module"
        )
    if not steps:
        raise BadOptimizer(f"{type(optimizer).__name__} steps no trainable parameter: give it model.parameters()")


def _check_new(model: nn.Module, optimizers: Sequence[object], before: Sequence[Unit]) -> None:
    if len({id(one) for one in optimizers}) < len(optimizers):
        raise BadOptimizer("wrap was given the same optimizer twice: name each once")
    for unit in before:
        if unit.owns(model):
            raise BadModel(
                f"{_kind(model)} is wrapped already: give all its optimizers to one call, run.wrap(model, a, b)"
            )
        if any(one is old for one in optimizers for old in unit.optimizers):
            raise BadOptimizer("this optimizer is wrapped already: give it to one call of wrap only")
    _check_once(optimizers, before)


def _check_once(optimizers: Sequence[Any], before: Sequence[Unit]) -> None:
    """A parameter that two optimizers step would be exchanged twice and stepped in two places."""
    earlier = (old for unit in before for old in unit.optimizers)
    seen: dict[int, Tensor] = {}
    for optimizer in [*earlier, *optimizers]:
        for parameter in trained(optimizer):
            if seen.setdefault(id(parameter), optimizer) is not optimizer:
                raise BadOptimizer(
                    f"a parameter of shape {tuple(parameter.shape)} is in two optimizers: put each parameter into one"
                )


def _named(every: Sequence[str]) -> str:
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def scalar(loss: object, where: str) -> Tensor:
    """The loss as the one number it must be; BadModel otherwise."""
    if not isinstance(loss, Tensor):
        raise BadModel(f"the loss of {where} is {_kind(loss)}: return the tensor that backward() is called on")
    if loss.numel() != 1:
        raise BadModel(
            f"the loss of {where} has shape {tuple(loss.shape)} and is not one number: take its mean() or sum()"
        )
    return loss


def find(units: Sequence[Unit], model: object) -> Unit:
    for unit in units:
        if unit.owns(model):
            return unit
    raise TrainError(f"{_kind(model)} was not wrapped: call model, optimizer = run.wrap(model, optimizer) first")
