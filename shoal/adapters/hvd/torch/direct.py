"""Collective operations on tensors that return their result. Those that do not work in place have gradients.

The gradient of an all-reduce is the all-reduce of the gradient; of what was handed out, the average of what came back
(as Horovod 0.28 has it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.ask import AVERAGE, SUM
from shoal.adapters.hvd.ops import chosen
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.torch import ops
from shoal.adapters.hvd.torch.compression import Compression
from shoal.adapters.hvd.torch.ops import synchronize


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    small, context = compression.compress(tensor)
    found = _Reduced.apply(small, name, chosen(op, average), prescale_factor, postscale_factor, process_set)
    whole: Tensor = compression.decompress(found, context)
    return whole


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    handle = ops.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    found: Tensor = synchronize(handle)
    return found


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    pairs = [compression.compress(one) for one in tensors]
    facts = (name, chosen(op, average), prescale_factor, postscale_factor, process_set)
    found = _GroupReduced.apply(facts, *(small for small, _ in pairs))
    return [compression.decompress(one, context) for one, (_, context) in zip(found, pairs, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    handle = ops.grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    found: list[Tensor] = synchronize(handle)
    return found


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    found: Tensor = _Gathered.apply(tensor, name, process_set)
    return found


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    return list(_GroupGathered.apply((name, process_set), *tensors))


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    found: Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return found


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    found: Tensor = synchronize(ops.broadcast_async_(tensor, root_rank, name, process_set))
    return found


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """What came, and with `splits` also how many rows from each."""
    whole, received = _Swapped.apply(tensor, splits, name, process_set)
    return whole if splits is None else (whole, received)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    small, context = compression.compress(tensor)
    found = _Scattered.apply((name, op, process_set, prescale_factor, postscale_factor), small)[0]
    whole: Tensor = compression.decompress(found, context)
    return whole


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: str = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    pairs = [compression.compress(one) for one in tensors]
    facts = (name, op, process_set, prescale_factor, postscale_factor)
    found = _Scattered.apply(facts, *(small for small, _ in pairs))
    return [compression.decompress(one, context) for one, (_, context) in zip(found, pairs, strict=True)]


class _Reduced(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, op: str, *rest: Any) -> Any:
        ctx.facts = op, *rest
        return synchronize(ops.allreduce_async(tensor, None, name, op, *rest))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        op, *rest = ctx.facts
        return synchronize(ops.allreduce_async(grads[0], None, None, op, *rest)), *[None] * 5


class _GroupReduced(Function):
    @staticmethod
    def forward(ctx: Any, facts: Any, *tensors: Tensor) -> Any:
        name, *ctx.facts = facts
        return tuple(synchronize(ops.grouped_allreduce_async(tensors, None, name, *ctx.facts)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *synchronize(ops.grouped_allreduce_async(grads, None, None, *ctx.facts))


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Any:
        ctx.rows, ctx.process_set = tensor.shape[0] if tensor.dim() else 1, process_set
        ctx.shape = tensor.shape
        return synchronize(ops.allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _own_rows(grads[0], ctx.rows, ctx.process_set).view(ctx.shape), None, None


class _GroupGathered(Function):
    @staticmethod
    def forward(ctx: Any, facts: Any, *tensors: Tensor) -> Any:
        name, ctx.process_set = facts
        ctx.rows = [one.shape[0] for one in tensors]
        return tuple(synchronize(ops.grouped_allgather_async(tensors, name, ctx.process_set)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        every = zip(grads, ctx.rows, strict=True)
        return None, *(_own_rows(grad, rows, ctx.process_set) for grad, rows in every)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return synchronize(ops.broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        found = synchronize(ops.allreduce_async(grads[0], op=AVERAGE, process_set=ctx.process_set))
        return found if basics.rank() == ctx.root else torch.zeros_like(found), None, None, None


class _Swapped(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        size = process_set.size() or 1
        parts = splits if splits is not None else _even(tensor.shape[0], size)
        whole, received = synchronize(ops.alltoall_async(tensor, parts, name, process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return whole, received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        found, _ = synchronize(ops.alltoall_async(grads[0], ctx.received, None, ctx.process_set))
        return found, None, None, None


class _Scattered(Function):
    @staticmethod
    def forward(ctx: Any, facts: Any, *tensors: Tensor) -> Any:
        name, ctx.op, ctx.process_set, ctx.before, ctx.after = facts
        return tuple(
            synchronize(
                ops.grouped_reducescatter_async(tensors, name, ctx.op, ctx.process_set, ctx.before, ctx.after)
            )
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        factor = ctx.before * ctx.after * (ctx.process_set.size() if ctx.op == SUM else 1)
        scaled = [grad * factor for grad in grads]
        return None, *synchronize(ops.grouped_allgather_async(scaled, None, ctx.process_set))


def _own_rows(grad: Tensor, rows: int, process_set: ProcessSet) -> Tensor:
    """This worker's rows of the average of everybody's gradient."""
    reduced = synchronize(ops.allreduce_async(grad, op=AVERAGE, process_set=process_set))
    counts = synchronize(ops.allgather_async(torch.tensor([rows]), process_set=process_set))
    begin = int(counts[: process_set.rank()].sum())
    return reduced[begin : begin + rows]


def _even(rows: int, size: int) -> tuple[int, ...]:
    if rows % size:
        raise ValueError(f"alltoall without splits: {rows} rows do not divide by {size}; give splits")
    return (rows // size,) * size
