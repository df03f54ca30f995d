"""Making all workers begin alike: parameters, optimizers and any object, from one of them to the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.objects import allgather_object, broadcast_object
from shoal.adapters.hvd.torch.ops import broadcast_async_, synchronize

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """`model.state_dict()`, `model.named_parameters()` or `model.parameters()`, in place; what is no tensor stays."""
    if isinstance(params, Mapping):
        named: list[tuple[str | None, Any]] = sorted(params.items())
    elif isinstance(params, Tensor) or not isinstance(params, Iterable):
        raise ValueError(f"invalid params of type: {type(params)}")
    else:
        named = [one if isinstance(one, tuple) else (None, one) for one in params]
    tensors = [(name, one) for name, one in named if isinstance(one, Tensor)]
    for handle in [broadcast_async_(one, root_rank, name) for name, one in tensors]:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Hyperparameters and state, also of an optimizer that has not stepped yet."""
    state = broadcast_object(optimizer.state_dict(), root_rank, "optimizer")
    if basics.rank() != root_rank:
        optimizer.load_state_dict(state)
