"""An optimizer as data: the name of a class in torch.optim and the hyperparameters of its groups.

Only classes that treat every element by itself can be cut into chunks and run on servers; exactly those classes, not
what derives from them. Any other optimizer stays on the worker. Nothing is pickled: a recipe is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from shoal.train.errors import BadOptimizer

ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adamax", "NAdam", "RAdam", "Adadelta", "Rprop", "ASGD",
)  # fmt: skip
_FOR_GPUS = ("capturable",)  # means nothing where the server runs
HOW = ("foreach", "fused")  # how torch computes, not what: kept, because the last bits depend on it

Changes = Mapping[str, Mapping[str, Any]]  # group index (as text, for JSON) → hyperparameter → value


@dataclass(frozen=True)
class Recipe:
    """What a server needs to step as the user's optimizer would."""

    name: str
    groups: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, optimizer: Optimizer) -> Recipe | None:
        """The recipe of an optimizer, or None where it cannot leave the worker."""
        name = type(optimizer).__name__
        if name not in ELEMENTWISE or type(optimizer) is not getattr(torch.optim, name):
            return None
        if any(group.get("differentiable") for group in optimizer.param_groups):
            return None
        return cls(name, tuple(_hyper(optimizer, group) for group in optimizer.param_groups))

    def changes(self, since: Recipe) -> Changes:
        """What a scheduler, or the user, has changed since; empty when nothing."""
        if (self.name, len(self.groups)) != (since.name, len(since.groups)):
            raise BadOptimizer(
                f"the optimizer was {since.name} with {len(since.groups)} groups and is {self.name} with "
                f"{len(self.groups)}; give all groups before the run wraps it"
            )
        found = {}
        for index, (mine, old) in enumerate(zip(self.groups, since.groups, strict=True)):
            differing = {key: value for key, value in mine.items() if old.get(key, _ABSENT) != value}
            if differing:
                found[str(index)] = differing
        return found

    def everything(self) -> Changes:
        """All values, for who may know others."""
        return {str(index): dict(group) for index, group in enumerate(self.groups)}

    def changed(self, changes: Changes) -> Recipe:
        """The recipe after changes that were found elsewhere. BadOptimizer where it has no such group or value."""
        groups = [dict(group) for group in self.groups]
        for index, values in changes.items():
            if not (index.isdigit() and int(index) < len(groups)) or set(values) - set(groups[int(index)]):
                known = sorted(groups[0])
                raise BadOptimizer(
                    f"{self.name} has {len(groups)} groups with {', '.join(known)}; "
                    f"it cannot take {dict(values)} for group {index}: send the changes of the same optimizer"
                )
            groups[int(index)].update({key: _value(value) for key, value in values.items()})
        return Recipe(self.name, tuple(groups))

    def switches(self, before: Recipe) -> bool:
        """Whether anything was switched on or off, such as momentum: only then can it keep other state than before."""
        pairs = zip(self.groups, before.groups, strict=True)
        return any(bool(mine[key]) != bool(old[key]) for mine, old in pairs for key in mine)

    def build(self, group: int, tensor: torch.Tensor) -> Optimizer:
        """A fresh optimizer of that group over one flat tensor."""
        kind = getattr(torch.optim, self.name)
        optimizer: Optimizer = kind([tensor], **self.constructor(group))
        self.tune(group, optimizer)
        return optimizer

    def constructor(self, group: int) -> dict[str, Any]:
        """What the constructor of the class takes; some hyperparameters are set on the group only."""
        taken = _ARGUMENTS.get(self.name) or _ARGUMENTS.setdefault(self.name, _arguments(self.name))
        return {key: value for key, value in self.groups[group].items() if key in taken}

    def tune(self, group: int, optimizer: Optimizer) -> None:
        """Gives an optimizer that was built before the values of now."""
        optimizer.param_groups[0].update(self.groups[group])

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "groups": [dict(group) for group in self.groups]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """BadOptimizer for a name that is not in the list: what comes over the wire chooses nothing else."""
        name = str(data["name"])
        if name not in ELEMENTWISE:
            raise BadOptimizer(f"optimizer {name!r} cannot run on a server; it may be one of {', '.join(ELEMENTWISE)}")
        return cls(name, tuple({str(key): _value(value) for key, value in group.items()} for group in data["groups"]))


_ABSENT = object()
_ARGUMENTS: dict[str, frozenset[str]] = {}


def _arguments(name: str) -> frozenset[str]:
    code = getattr(torch.optim, name).__init__.__code__
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _hyper(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """The class's own hyperparameters; what schedulers and users keep in the group beside them is not ours."""
    found = {key: _value(group[key]) for key in optimizer.defaults if key in group and key not in _FOR_GPUS}
    if any(param.device.type != "cpu" for param in group["params"]):
        found.update({key: None for key in HOW if key in found})
    return found


def _value(value: Any) -> Any:
    """As JSON can hold it and torch takes it: numbers, booleans, None, tuples of these."""
    if isinstance(value, torch.Tensor):
        return value.item()
    if isinstance(value, (list, tuple)):
        return tuple(_value(one) for one in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise BadOptimizer(f"hyperparameter {value!r} is no number, so it cannot be sent to a server; give it as a number")
