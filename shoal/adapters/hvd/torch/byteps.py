"""What `import byteps.torch as bps` gives a script: the same exchange under BytePS's names. There are no servers: what
BytePS pushes and pulls through them is an all-reduce among the workers here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.basics import init, local_rank, local_size, rank, shutdown, size
from shoal.adapters.hvd.objects import broadcast_object
from shoal.adapters.hvd.torch import direct, functions, ops, optimizer
from shoal.adapters.hvd.torch.compression import Compression
from shoal.adapters.hvd.torch.ops import poll, synchronize

__all__ = [
    "Compression",
    "CrossBarrier",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "broadcast",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> Tensor:
    """The sum or average over the workers. Versions and priorities say nothing here: what is ready goes."""
    return direct.allreduce(tensor, average, name, compression)


def push_pull_inplace(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Tensor:
    return direct.allreduce_(tensor, average, name)


def push_pull_async(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    return ops.allreduce_async(tensor, average, name)


def push_pull_async_inplace(
    tensor: Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    return ops.allreduce_async_(tensor, average, name)


byteps_push_pull = push_pull_async_inplace


broadcast = direct.broadcast


def declare(name: str) -> None:
    """Names need not be known beforehand."""


def suspend() -> None:
    shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int, context: Any = None) -> None:
    """Goes on after `suspend`, with the workers of the job. ValueError for any other number of them."""
    init()
    if num_workers != basics.size():
        raise ValueError(f"resume(num_workers={num_workers}): the job has {basics.size()}; submit it with that many")


def DistributedOptimizer(  # noqa: N802, BytePS's name
    optim: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
) -> Any:
    return optimizer.DistributedOptimizer(optim, named_parameters, compression, backward_passes_per_step)


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int, prefix: str = "Parameter.") -> None:
    functions.broadcast_parameters(params, root_rank)


def broadcast_optimizer_state(optim: torch.optim.Optimizer, root_rank: int, prefix: str = "Parameter.") -> None:
    functions.broadcast_optimizer_state(optim, root_rank)


def CrossBarrier(  # noqa: N802, BytePS's name
    model: nn.Module,
    optim: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    num_steps: int = 10**6,
) -> Any:
    """The same results as `DistributedOptimizer`, and as soon: nothing of the next step begins before this one ends."""
    return DistributedOptimizer(optim, named_parameters, compression, backward_passes_per_step)


class DistributedDataParallel(nn.Module):
    """A model whose gradients are the average over the workers when `backward` returns."""

    def __init__(self, module: nn.Module, device_ids: Any = None, broadcast_buffers: bool = True, **_: Any) -> None:
        super().__init__()
        self.module = module
        self.require_forward_param_sync = broadcast_buffers
        broadcast_parameters(module.state_dict(), 0)
        self._names: dict[Tensor, str] = {one: name for name, one in module.named_parameters() if one.requires_grad}
        self._handles: dict[Tensor, int] = {}
        every: list[Any] = list(self._names)
        for one in every:
            one.register_post_accumulate_grad_hook(self._computed)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def _computed(self, one: Tensor) -> None:
        if not self._handles:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finish)
        if one not in self._handles and one.grad is not None:
            self._handles[one] = ops.allreduce_async_(one.grad, True, f"ddp.{self._names[one]}")

    def _finish(self) -> None:
        """At the end of the backward pass; what no pass reached on this worker is brought as zeros."""
        for one, name in self._names.items():
            if one not in self._handles:
                one.grad = torch.zeros_like(one) if one.grad is None else one.grad
                self._handles[one] = ops.allreduce_async_(one.grad, True, f"ddp.{name}")
        for handle in self._handles.values():
            synchronize(handle)
        self._handles.clear()
