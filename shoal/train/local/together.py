"""The first phase of post-local SGD: gradients are averaged at every step, until all workers are in the epoch where
each goes its own way. Any optimizer steps then as one process with the whole batch would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.train.flat import Flat
from shoal.train.local.buffers import Buffers
from shoal.train.local.rounds import RANK, Rounds, Word, going

if TYPE_CHECKING:
    from shoal.train.api import Setting


class Together:
    """A Part that is never behind: its replicas are equal."""

    def __init__(
        self, name: str, named: Sequence[tuple[str, Tensor]], buffers: Buffers, setting: Setting, rounds: Rounds
    ) -> None:
        self.name, self.rounds, self.buffers = name, rounds, buffers
        self.on = setting.options["from_epoch"] > 0
        self._setting = setting
        self._parameters = [tensor for _, tensor in named]
        self._steps = 0

    def step(self) -> bool:
        """Averages the gradients; or returns True, with the gradients as they are: from now on everyone is alone. All
        workers part at the same step, when the last of them has come into the epoch."""
        ready = self._setting.epoch() >= self._setting.options["from_epoch"]
        with self._setting.seeing.waiting_for(f"gradients of step {self._steps + 1}, averaged"):
            parted = bool(self.rounds.now(self.name, {"ready": ready, "steps": self._steps}, self._average))
        self._steps += 1
        self.on = not parted
        return parted

    def behind(self) -> int:
        return 0

    def flush(self, said: list[Word]) -> None:
        """Others still average: this one has nothing to add."""
        self._average(said, silent=True)

    def _average(self, said: list[Word], silent: bool = False) -> bool:
        if all(one.get("ready") for one in going(said)):
            return True
        group = self.rounds.group
        layout = Flat([_gradient(one, silent) for one in self._parameters])
        flats = layout.read()
        # Who had a gradient at all, and who counts: a parameter nobody used keeps none.
        has = [0.0 if silent or one.grad is None else 1.0 for one in self._parameters]
        marks = flats[0].new_tensor([*has, float(not silent)])
        for flat in [*flats, marks]:
            group.all_reduce(flat)
        count = float(marks[-1])
        for parameter, mark, mean in zip(self._parameters, marks[:-1].tolist(), layout.views(flats), strict=True):
            if mark and not silent:
                _set_gradient(parameter, mean.div_(count))
        self._average_buffers(said)
        return False

    def _average_buffers(self, said: list[Word]) -> None:
        if self.buffers and int(going(said)[0].get("steps", 1)) % self._setting.options["every"] == 0:
            sent = self.buffers.send()
            self.buffers.reduce(sent, self.rounds.group, int(said[0][RANK]))
            self.buffers.take(sent)


def _gradient(parameter: Tensor, silent: bool) -> Tensor:
    return torch.zeros_like(parameter) if silent or parameter.grad is None else parameter.grad


def _set_gradient(parameter: Tensor, mean: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    parameter.grad.detach().copy_(mean)
