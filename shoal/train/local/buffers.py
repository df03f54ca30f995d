"""What becomes of BatchNorm's statistics and the like when replicas are averaged: numbers are averaged too, counters
and switches are those of the lowest member."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.train.flat import Flat

if TYPE_CHECKING:
    from shoal.train.group.api import Group

POLICY = "averaged at every round; integers and switches from the lowest member"


class Buffers:
    """The buffers of one model."""

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        each = list({id(one): one.detach() for one in buffers}.values())
        self.numbers = Flat([one for one in each if one.is_floating_point()])
        self.counters = [one for one in each if not one.is_floating_point() and not one.is_complex()]
        self._read: list[Tensor] = []  # as they were sent
        self._counted: list[Tensor] = []

    def __bool__(self) -> bool:
        return bool(self.numbers.tensors or self.counters)

    def state(self) -> list[Tensor]:
        """As they were sent, while a result is under way."""
        return [one.clone() for one in [*self._read, *self._counted]]

    def load(self, state: Sequence[Tensor]) -> None:
        numbers = len(self.numbers.empty())
        self._read, self._counted = list(state[:numbers]), list(state[numbers:])

    def send(self) -> list[Tensor]:
        """Copies, to be reduced."""
        self._read = self.numbers.read()
        self._counted = [one.clone() for one in self.counters]
        return [*(one.clone() for one in self._read), *(one.clone() for one in self._counted)]

    def reduce(self, sent: list[Tensor], group: Group, lowest: int) -> None:
        """Collective, in place."""
        numbers = len(self._read)
        for flat in sent[:numbers]:
            group.all_reduce(flat, "mean")
        for counter in sent[numbers:]:
            group.broadcast(counter.view(torch.uint8) if counter.dtype == torch.bool else counter, lowest)

    def take(self, result: list[Tensor]) -> None:
        """The result, and what was added since it was sent."""
        numbers = len(self._read)
        now = self.numbers.read()
        for mean, sent, here in zip(result[:numbers], self._read, now, strict=True):
            here.copy_(torch.where(here == sent, mean, mean + (here - sent)))
        self.numbers.write(now)
        for counter, sent, theirs in zip(self.counters, self._counted, result[numbers:], strict=True):
            counter.copy_(theirs if counter.dtype == torch.bool else theirs + (counter - sent))
