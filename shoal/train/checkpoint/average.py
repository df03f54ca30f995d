"""Averaged weights beside the model: `ema` after every step, `swa` after every epoch.

The arithmetic is torch's own (`torch.optim.swa_utils`), so the numbers are those of an AveragedModel, bit for bit: the
first update copies, later ones average; all parameters take part, buffers stay the model's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_avg_fn, get_swa_multi_avg_fn

from shoal.train.api import Partition, State
from shoal.train.errors import BadCheckpoint

EMA, SWA = "ema", "swa"


class Averages:
    """The average of one model's weights."""

    def __init__(self, model: nn.Module, kind: str, decay: float = 0.999, partition: Partition | None = None) -> None:
        if kind not in (EMA, SWA):
            raise ValueError(f"averages are ema or swa, not {kind!r}")
        self.kind, self._model, self._partition = kind, model, partition
        self._parameters = list(model.parameters())
        self._averaged = [one.detach().clone() for one in self._parameters]
        self._count = torch.tensor(0, dtype=torch.long)
        self._ema = get_ema_multi_avg_fn(decay) if kind == EMA else None  # type: ignore[no-untyped-call]

    @property
    def count(self) -> int:
        """How many times the model was taken in."""
        return int(self._count)

    @torch.no_grad()
    def update(self) -> None:
        """Takes the model in as it is now."""
        values = [one.detach() for one in self._parameters]
        if not self.count:
            for averaged, value in zip(self._averaged, values, strict=True):
                averaged.copy_(value)
        else:
            self._mix(values)
        self._count += 1

    def weights(self) -> dict[str, Tensor]:
        """A state dict for the model, with averaged parameters. Collective where the model is cut into parts."""
        if self._partition is not None:
            with self._swapped():
                return {name: one.detach().clone() for name, one in self._partition.model_state(self._model).items()}
        averaged = {id(one): mean for one, mean in zip(self._parameters, self._averaged, strict=True)}
        state = self._model.state_dict(keep_vars=True)
        return {
            name: averaged.get(id(one), one).detach().clone() if isinstance(one, Tensor) else one
            for name, one in state.items()
        }

    def state(self) -> State:
        """What belongs to the averages beside the weights."""
        return {"kind": self.kind, "count": self.count}

    def load(self, weights: Mapping[str, Tensor], state: State) -> None:
        if state["kind"] != self.kind:
            raise BadCheckpoint(
                f"the checkpoint holds averages of kind {state['kind']} and the run keeps {self.kind}: run it with "
                f"average={state['kind']}"
            )
        self._count.fill_(state["count"])
        for (name, parameter), averaged in zip(self._model.named_parameters(), self._averaged, strict=True):
            if name not in weights:
                raise BadCheckpoint(f"the checkpoint has no averaged weights for {name!r}: it is of another model")
            averaged.copy_(self._cut(weights[name], parameter))

    def _mix(self, values: list[Tensor]) -> None:
        groups: dict[tuple[Any, Any], tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for averaged, value in zip(self._averaged, values, strict=True):
            means, news = groups[averaged.device, averaged.dtype]
            means.append(averaged)
            news.append(value)
        for (device, _), (means, news) in groups.items():
            count = self._count.to(device)
            if self._ema is not None:
                self._ema(means, news, count)
            elif device.type == "cpu":  # as AveragedModel does: its kernels for lists are for other devices
                mean_of = get_swa_avg_fn()  # type: ignore[no-untyped-call]
                for mean, new in zip(means, news, strict=True):
                    mean.copy_(mean_of(mean, new, count))
            else:
                get_swa_multi_avg_fn()(means, news, count)  # type: ignore[no-untyped-call]

    def _cut(self, whole: Tensor, parameter: Tensor) -> Tensor:
        if self._partition is None:
            return whole
        from shoal.train.partition.whole import like

        return like(whole, parameter)

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        """Inside, the model has the averaged weights. Through `.data`, which autograd does not watch."""
        before = [one.detach().clone() for one in self._parameters]
        try:
            for parameter, averaged in zip(self._parameters, self._averaged, strict=True):
                parameter.data.copy_(averaged)
            yield
        finally:
            for parameter, value in zip(self._parameters, before, strict=True):
                parameter.data.copy_(value)
