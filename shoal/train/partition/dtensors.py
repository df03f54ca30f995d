"""What partitions share whose parameters are DTensors of torch: the user sees whole ones, a worker holds a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train import process_group
from shoal.train.api import State
from shoal.train.partition import whole
from shoal.train.world import World


class OverDTensors:
    """Saving, loading and the end. Every call is collective."""

    name = ""  # in `shoal.strategy`
    _world: World
    _model: nn.Module | None
    _optimizers: Sequence[Optimizer]
    _known: Mapping[int, str]  # names by identity

    def model_state(self, model: nn.Module) -> Mapping[str, Tensor]:
        with process_group.waiting(f"state_dict of {self.name}", process_group.others(self._world)):
            return dict(model.state_dict())

    def state(self) -> State:
        assert self._model is not None
        with process_group.waiting(f"optimizer state of {self.name}", process_group.others(self._world)):
            return whole.export(self._optimizers, self._known)

    def load(self, model_state: Mapping[str, Tensor], state: State) -> None:
        assert self._model is not None
        self._model.load_state_dict(dict(model_state))
        if state:
            whole.restore(self._optimizers, self._known, state)

    def finish(self) -> None:
        if self._model is not None:
            self._model = None
            process_group.leave()

    def _backward(self, loss: Tensor) -> Tensor:
        """Through the loss; its mean over all workers."""
        loss.backward()  # type: ignore[no-untyped-call]
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / self._world.size
