"""One stage of a pipeline: the part of the user's forward between two cuts, run as the user wrote it.

What comes before is computed without numbers (from shapes kept since the last time, so it costs next to nothing) until
the first unit of the stage is called: its arguments are replaced by what the stage before has sent. The forward ends
where the first unit of the next stage would be called: its arguments are what is sent on. Masks, positions and the
like, which are made from the batch, are made by every stage itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from shoal.train.errors import BadModel
from shoal.train.partition.shapes import Mixing, computed, is_empty
from shoal.train.partition.trace import Chain, Gates

CPU = torch.device("cpu")
Receive = Callable[[list[Tensor]], Sequence[Tensor]]


class _Reached(BaseException):
    """The next stage begins here. Not an Exception: a script's `except Exception` must let it pass."""

    def __init__(self, values: list[Tensor]) -> None:
        super().__init__()
        self.values = values


class Stage:
    """Units first … end-1 of the chain, on one device."""

    def __init__(
        self,
        forward: Callable[..., Any],
        gates: Gates,
        chain: Chain,
        first: int,
        end: int,
        device: torch.device = CPU,
    ) -> None:
        self._forward, self._gates, self._chain, self.device = forward, gates, chain, device
        self.first, self.end = first, end
        self._shapes: dict[Any, Any] = {}
        self.travels = 0  # bytes sent for the last micro-batch: what it made, and the gradient of what came

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.end == len(self._chain.units)

    def run(self, inputs: Sequence[Any], receive: Receive, **named: Any) -> Any:
        """The model's output on the last stage; elsewhere what the next stage needs. `receive` is shown tensors without
        numbers and answers with those that have them."""
        came: list[Tensor] = []

        def taken(like: list[Tensor]) -> Sequence[Tensor]:
            came.extend(like)
            return receive(like)

        out = self._walk(inputs, named, _Walk(self, taken))
        self.travels = _size([one for one in came if one.is_floating_point()]) + (0 if self.is_last else _size(out))
        return out

    def shapes(self, inputs: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
        """What comes in and what goes out for such inputs, as tensors without numbers."""
        came: list[Tensor] = []

        def note(values: list[Tensor]) -> Sequence[Tensor]:
            came.extend(values)
            return values

        with torch.no_grad():
            out = self._walk(inputs, {}, _Walk(self, note, dry=True))
        return came, [one for one in tree.tree_leaves(out) if isinstance(one, Tensor)]

    def _walk(self, inputs: Sequence[Any], named: Mapping[str, Any], walk: _Walk) -> Any:
        try:
            with Mixing(self.device), self._gates.charge(walk.call):
                return self._forward(*inputs, **named)
        except _Reached as reached:
            return reached.values


class _Walk:
    """One run through the forward."""

    def __init__(self, stage: Stage, receive: Receive, dry: bool = False) -> None:
        self._stage, self._receive, self.dry = stage, receive, dry
        self._count = 0

    def call(self, name: str, unit: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        stage, chain, place = self._stage, self._stage._chain, self._count
        self._count += 1
        if place >= len(chain.units) or chain.units[place].name != name:
            known = chain.units[place].name if place < len(chain.units) else "nothing"
            raise BadModel(
                f"the forward calls {name!r} where it called {known!r} before: "
                "a pipeline needs the same order in every batch"
            )
        flat, spec = tree.tree_flatten((args, kwargs))
        if place == stage.end:
            raise _Reached([flat[at] for at in chain.crossing[place]])
        if place == stage.first and place:
            crosses = chain.crossing[place]
            for at, value in zip(crosses, self._receive([flat[at] for at in crosses]), strict=True):
                flat[at] = value
            args, kwargs = tree.tree_unflatten(flat, spec)
        if self.dry or place < stage.first:
            return self._without_numbers(place, unit, forward, args, kwargs, flat)
        if any(is_empty(one) for one in flat):
            raise BadModel(
                f"{name!r} takes a value that an earlier stage made and did not send: "
                "cut the pipeline elsewhere, with run.mark and split=marks"
            )
        with torch._C.DisableTorchFunction():
            return forward(*args, **kwargs)

    def _without_numbers(
        self, place: int, unit: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any, flat: list[Any]
    ) -> Any:
        known = self._stage._shapes
        key = (place, unit.training, *(_kind(one) for one in flat))
        if key not in known:
            known[key] = computed(unit, forward, args, kwargs, self._stage.device)
        return known[key]


def _kind(value: Any) -> Any:
    """What of an argument may decide the shape of an output."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return value if isinstance(value, (bool, int, float, str)) else type(value)


def _size(values: Sequence[Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in values)
