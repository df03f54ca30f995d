"""BatchNorm's statistics and the like: after every step all workers have those of the lowest one.

DDP does this before each forward and so changes buffers that a graph still under way may need (pytorch#22095); after
the step there is none. Large buffers, such as masks, are only sent when torch says that they changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from shoal.train.sync.alike import start_equal

if TYPE_CHECKING:
    from shoal.train.group.api import Group

POLICY = "after every step those of the lowest worker, as with DistributedDataParallel"
LARGE = 64 << 10  # bytes; BatchNorm changes its statistics without torch noticing, but they are never so large


class Buffers:
    """The buffers of one model."""

    def __init__(self, model: nn.Module, group: Group) -> None:
        self._group = group
        # Their names by `keys()`: what a script module has instead of a dict cannot be walked through.
        self._places = [(module, name) for module in model.modules() for name in [*module._buffers.keys()]]
        self._seen = {place: one._version for place, one in self._large()}

    def spread(self) -> None:
        """Collective. Nothing at all where a model has no buffers."""
        if not self._places:
            return
        now = dict(self._large())
        changed = [self._seen.get(place) != one._version for place, one in now.items()]
        # Who is here, and what changed at any of them: all must agree on both before they send.
        word = torch.zeros(self._group.size + len(changed), dtype=torch.int32)
        word[self._group.rank] = 1
        word[self._group.size :] = torch.tensor(changed, dtype=torch.int32)
        self._group.all_reduce(word)
        moved = [one for one, mark in zip(now.values(), word[self._group.size :].tolist(), strict=True) if mark]
        lowest = int(torch.nonzero(word[: self._group.size])[0])
        start_equal([*self._small(), *moved], self._group, lowest)
        self._seen = {place: one._version for place, one in self._large()}

    def _all(self) -> list[tuple[int, Tensor]]:
        found = ((place, module._buffers[name]) for place, (module, name) in enumerate(self._places))
        return [(place, one) for place, one in found if one is not None]

    def _small(self) -> list[Tensor]:
        return [one for _, one in self._all() if one.nbytes <= LARGE]

    def _large(self) -> list[tuple[int, Tensor]]:
        return [(place, one) for place, one in self._all() if one.nbytes > LARGE]
