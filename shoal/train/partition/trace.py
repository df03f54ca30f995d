"""What the forward of a model does with its modules: which it calls, in which order, what each costs, what flows.

The forward runs as the user wrote it, on one real micro-batch, but every *unit* (a layer of a list, or a module beside
them, that has parameters) computes shapes and no numbers. Every value carries the units it came from, so that the
places where the model can be cut follow: those where everything made before goes through the arguments of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree
from torch.utils.flop_counter import FlopCounterMode

from shoal.train.errors import BadModel
from shoal.train.partition.shapes import Mixing, computed
from shoal.train.partition.split import MARK, Unit

_FROM = "_shoal_from"  # on a tensor: the units and outer parameters it came from
_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
Source = tuple[str, Any]


@dataclass
class Chain:
    """The calls of units in order. `crossing[k]`: which of the flattened arguments of call k come from units."""

    units: list[Unit] = field(default_factory=list)
    crossing: list[tuple[int, ...]] = field(default_factory=list)
    blocked: dict[int, str] = field(default_factory=dict)  # a cut before this call cannot be, and why
    homes: dict[str, int] = field(default_factory=dict)  # outer parameter → the call with which it must stay


class Gates:
    """Stands before the forward of every unit. With nobody in charge a unit is itself; `charge` puts somebody there."""

    def __init__(self, model: nn.Module, marks: bool = False) -> None:
        self.units = dict(units(model, marks))
        inside = {id(one) for unit in self.units.values() for one in unit.modules()}
        self.outer = [one for one in model.modules() if id(one) not in inside]
        self._charge: Callable[..., Any] | None = None
        for name, unit in self.units.items():
            unit.forward = _Gate(self, name, unit, unit.forward)

    def remove(self) -> None:
        for unit in self.units.values():
            if isinstance(unit.__dict__.get("forward"), _Gate):
                del unit.__dict__["forward"]

    @contextmanager
    def charge(self, call: Callable[..., Any]) -> Iterator[None]:
        before, self._charge = self._charge, call
        try:
            yield
        finally:
            self._charge = before


class _Gate:
    def __init__(self, gates: Gates, name: str, unit: nn.Module, forward: Callable[..., Any]) -> None:
        self._gates, self._name, self._unit, self._forward = gates, name, unit, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        charge = self._gates._charge
        if charge is None:
            return self._forward(*args, **kwargs)
        return charge(self._name, self._unit, self._forward, args, kwargs)


def units(model: nn.Module, marks: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Layers of lists and sequences, and modules that hold no lists, each with parameters: what has none is computed
    wherever its input is. With marks, what they name is a unit."""
    if not _opened(model, False, marks):
        yield "", model
        return
    yield from _units(model, "", marks)


def _units(module: nn.Module, prefix: str, marks: bool) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if _opened(child, isinstance(module, _LISTS), marks):
            yield from _units(child, path, marks)
        elif any(True for _ in child.parameters()) or (marks and getattr(child, MARK, False)):
            yield path, child


def _opened(module: nn.Module, listed: bool, marks: bool) -> bool:
    """Whether the units are inside the module, rather than the module itself."""
    if marks and getattr(module, MARK, False):
        return False
    inner = [one for one in module.modules() if one is not module]
    if isinstance(module, _LISTS) or (marks and any(getattr(one, MARK, False) for one in inner)):
        return True
    return not listed and any(isinstance(one, _LISTS) and len(one) > 1 for one in inner)


def trace(model: nn.Module, forward: Callable[..., Any], gates: Gates, inputs: tuple[Any, ...]) -> Chain:
    """Runs the forward once. BadModel when it cannot be followed."""
    tracer = _Tracer(model, gates)
    try:
        with torch.no_grad(), tracer, gates.charge(tracer.call):
            result = forward(*inputs)
    except (RuntimeError, NotImplementedError) as error:
        raise BadModel(
            f"the pipeline cannot follow the model's forward without numbers: {error}; it decides by values that "
            "layers compute, or uses an operation without shapes; write it as nn.Sequential, or use fsdp"
        ) from error
    tracer.consume(result, len(tracer.chain.units))
    return tracer.finished()


class _Tracer(Mixing):
    def __init__(self, model: nn.Module, gates: Gates) -> None:
        super().__init__(next(model.parameters()).device)
        self.chain = Chain()
        self._names = {id(one): name for name, one in model.named_parameters()}
        self._outer = {id(one) for module in gates.outer for one in module.parameters(recurse=False)}
        self._calls: list[nn.Module] = []
        self._last: dict[int, int] = {}  # unit → the last call that takes its output
        self._uses: dict[str, set[int]] = {}  # outer parameter → calls it must stay with

    def seen(self, values: list[Tensor], result: Any) -> Any:
        sources = frozenset().union(*(self._from(one) for one in values))
        if sources:
            _tag(result, sources)
        return result

    def _from(self, value: Tensor) -> frozenset[Source]:
        if id(value) in self._outer:
            return frozenset({("parameter", self._names[id(value)])})
        return getattr(value, _FROM, frozenset())

    def call(self, name: str, unit: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        place = len(self._calls)
        self.consume((args, kwargs), place)
        flat = tree.tree_leaves((args, kwargs))
        crosses = tuple(at for at, one in enumerate(flat) if isinstance(one, Tensor) and _units_in(self._from(one)))
        counter = FlopCounterMode(display=False)
        with counter:
            result = computed(unit, forward, args, kwargs, self.device)
        made = sum(one.numel() for one in tree.tree_leaves(result) if isinstance(one, Tensor))
        held = 0 if unit in self._calls else sum(one.numel() for one in unit.parameters())
        self._calls.append(unit)
        self.chain.units.append(
            Unit(name, float(counter.get_total_flops()), held, made, bool(getattr(unit, MARK, False)))
        )
        self.chain.crossing.append(crosses)
        return _tag(result, frozenset({("unit", place)}))

    def consume(self, value: Any, place: int) -> None:
        """What a call takes: the units it came from are needed until here, outer parameters stay where they are."""
        for one in tree.tree_leaves(value):
            if isinstance(one, Tensor):
                sources = self._from(one)
                made = _units_in(sources)
                for unit in made:
                    self._last[unit] = place
                for kind, name in sources:
                    if kind == "parameter":
                        self._uses.setdefault(name, set()).add(max(made) if made else place)

    def finished(self) -> Chain:
        chain, names = self.chain, [unit.name for unit in self.chain.units]
        for unit, last in self._last.items():
            used = f"used again at {names[last]!r}" if last < len(names) else "part of the model's output"
            self._block(unit, last - 1, f"what {names[unit]!r} makes is {used}")
        shared: dict[int, set[int]] = {}
        for place, called in enumerate(self._calls):
            for one in called.parameters():
                shared.setdefault(id(one), set()).add(place)
        for number, places in shared.items():
            first, last = min(places), max(places)
            same = self._calls[first] is self._calls[last]
            tied = f"the weight {self._names[number]!r} is tied, {names[first]!r} and {names[last]!r} share it"
            self._block(first, last, f"{names[first]!r} is called twice" if same else tied)
        for name, places in self._uses.items():
            homes = {min(place, len(names) - 1) for place in places}
            self._block(
                min(homes), max(homes), f"{name!r} is used beside {names[min(homes)]!r} and {names[max(homes)]!r}"
            )
            chain.homes[name] = min(homes)
        for place in range(1, len(names)):
            if not chain.crossing[place]:
                chain.blocked.setdefault(place, f"{names[place]!r} takes nothing from the layers before it")
        return chain

    def _block(self, first: int, last: int, why: str) -> None:
        """No cut after call `first` up to before call `last`."""
        for place in range(first + 1, last + 1):
            self.chain.blocked.setdefault(place, why)


def _tag(value: Any, sources: frozenset[Source]) -> Any:
    for one in tree.tree_leaves(value):
        if isinstance(one, Tensor):
            setattr(one, _FROM, sources)
    return value


def _units_in(sources: frozenset[Source]) -> list[int]:
    return [number for kind, number in sources if kind == "unit"]
