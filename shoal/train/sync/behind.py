"""What backward left behind: gradients that grew where no bucket saw them are averaged when the step needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from shoal.train.compress.api import Reducer
    from shoal.train.group.api import Group
    from shoal.train.sync.growth import Growth


class Behind:
    """Averages at the step what `growth` knows of."""

    def __init__(self, group: Group, reducer: Reducer | None, names: Mapping[int, str], growth: Growth) -> None:
        self._group, self._reducer, self._names, self._growth = group, reducer, names, growth

    def settle(self, parameters: Sequence[Tensor], always: bool) -> None:
        """Averages what grew of these, where anything grew or, where no bucket ever sees any, `always`. Collective."""
        thawed = self._growth.watch(parameters)
        grown = self._growth.grown() | {id(one) for one in thawed if one.grad is not None}
        mine = {id(one) for one in parameters if id(one) in grown}
        if mine or always:
            self._growth.exchanged(parameters)
            self._average(parameters, mine)

    def _average(self, parameters: Sequence[Tensor], grown: set[int]) -> None:
        """Those that grew at any worker; who has no gradient adds zeros to it, and has one afterwards."""
        marks = torch.tensor([float(id(one) in grown) for one in parameters])
        self._group.all_reduce(marks)
        chosen = [one for one, mark in zip(parameters, marks.tolist(), strict=True) if mark]
        for one in chosen:
            if one.grad is None:
                one.grad = torch.zeros_like(one)
        if self._reducer is not None:
            self._reducer.mean([(self._names.get(id(one), "?"), _grad(one)) for one in chosen], self._group)
            return
        for kind in dict.fromkeys((one.dtype, one.device) for one in chosen):
            some = [_grad(one) for one in chosen if (one.dtype, one.device) == kind]
            flat = torch.cat([one.reshape(-1) for one in some])
            self._group.all_reduce(flat, "mean")
            for one, part in zip(some, torch.split(flat, [one.numel() for one in some]), strict=True):
                one.copy_(part.view(one.shape))


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach()
