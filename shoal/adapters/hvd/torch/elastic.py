"""Elastic training of torch models: what a `TorchState` keeps of a model, an optimizer, a sampler, or anything else."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch

from shoal.adapters.hvd.elastic import ObjectState, State, run, run_fn
from shoal.adapters.hvd.objects import broadcast_object
from shoal.adapters.hvd.torch.functions import broadcast_optimizer_state, broadcast_parameters
from shoal.adapters.hvd.torch.sampler import ElasticSampler

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "run_fn"]


class _Stateful(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class TorchState(ObjectState):
    """Models, optimizers and samplers are kept by their `state_dict`, everything else as it is."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        every = {**kwargs, "model": model, "optimizer": optimizer}
        self._kept = {name: value for name, value in every.items() if _is_kept(value)}
        self._states = {name: copy.deepcopy(value.state_dict()) for name, value in self._kept.items()}
        for name, value in self._kept.items():
            super().__setattr__(name, value)
        super().__init__(**{name: value for name, value in every.items() if name not in self._kept})

    def save(self) -> None:
        self._states = {name: copy.deepcopy(value.state_dict()) for name, value in self._kept.items()}
        super().save()

    def restore(self) -> None:
        for name, value in self._kept.items():
            value.load_state_dict(copy.deepcopy(self._states[name]))
        super().restore()

    def sync(self) -> None:
        for value in self._kept.values():
            _sync(value)
        super().sync()
        self.save()

    def reset(self) -> None:
        for value in self._kept.values():
            if isinstance(value, ElasticSampler):
                value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self.__dict__.get("_kept", {}):
            self._kept[name] = value
            self._states[name] = copy.deepcopy(value.state_dict())


def _is_kept(value: Any) -> bool:
    return isinstance(value, (torch.nn.Module, torch.optim.Optimizer, ElasticSampler))


def _sync(value: Any) -> None:
    if isinstance(value, torch.nn.Module):
        broadcast_parameters(value.state_dict(), root_rank=0)
    elif isinstance(value, torch.optim.Optimizer):
        broadcast_optimizer_state(value, root_rank=0)
    else:
        value.load_state_dict(broadcast_object(value.state_dict()))
