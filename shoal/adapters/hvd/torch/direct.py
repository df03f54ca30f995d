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
from shoal.adapters.hvd.torch import calls
from shoal.adapters.hvd.torch.compression import Compression


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
    found = _through(_Reduced, small, name, chosen(op, average), prescale_factor, postscale_factor, process_set)
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
    how = chosen(op, average)
    found: Tensor = calls.reduction([tensor], name, how, prescale_factor, postscale_factor, process_set).run()[0]
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
    found = _through(_GroupReduced, facts, *(small for small, _ in pairs))
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
    how = chosen(op, average)
    found: list[Tensor] = calls.reduction(tensors, name, how, prescale_factor, postscale_factor, process_set).run()
    return found


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    found: Tensor = _through(_Gathered, (name, process_set), tensor)[0]
    return found


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    return list(_through(_Gathered, (name, process_set), *tensors))


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    found: Tensor = _through(_Broadcast, tensor, root_rank, name, process_set)
    return found


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    found: Tensor = calls.broadcasting(tensor, root_rank, name, process_set).run()
    return found


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all have come here."""
    calls.meeting(process_set).run()


def join(device: int = -1) -> int:
    """Says that this worker has no more data: until all have said so it takes part in the others' all-reduces with
    zeros. Returns who said so last."""
    last: int = calls.joining().run()
    return last


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """What came, and with `splits` also how many rows from each."""
    whole, received = _through(_Swapped, tensor, splits, name, process_set)
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
    found = _through(_Scattered, (name, op, prescale_factor, postscale_factor, process_set), small)[0]
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
    facts = (name, op, prescale_factor, postscale_factor, process_set)
    found = _through(_Scattered, facts, *(small for small, _ in pairs))
    return [compression.decompress(one, context) for one, (_, context) in zip(found, pairs, strict=True)]


def _through(function: Any, *arguments: Any) -> Any:
    """The function's result, with its gradient noted; torch's `apply` has no types."""
    return function.apply(*arguments)


class _Reduced(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, *facts: Any) -> Any:
        ctx.facts = facts
        return calls.reduction([calls.copy_of(tensor)], name, *facts).run()[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return calls.reduction([calls.copy_of(grads[0])], None, *ctx.facts).run()[0], *[None] * 5


class _GroupReduced(Function):
    @staticmethod
    def forward(ctx: Any, facts: Any, *tensors: Tensor) -> Any:
        name, *ctx.facts = facts
        return tuple(calls.reduction([calls.copy_of(one) for one in tensors], name, *ctx.facts).run())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *calls.reduction([calls.copy_of(one) for one in grads], None, *ctx.facts).run()


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, facts: Any, *tensors: Tensor) -> Any:
        name, ctx.process_set = facts
        ctx.shapes = [one.shape for one in tensors]
        return tuple(calls.gathering(tensors, name, ctx.process_set).run())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        every = zip(grads, ctx.shapes, strict=True)
        return None, *(_own_rows(grad, shape, ctx.process_set) for grad, shape in every)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return calls.broadcasting(calls.copy_of(tensor), root, name, process_set).run()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        found = _average(grads[0], ctx.process_set)
        return found if basics.rank() == ctx.root else torch.zeros_like(found), None, None, None


class _Swapped(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        whole, ctx.received = calls.swapping(tensor, splits, name, process_set).run()
        ctx.process_set = process_set
        ctx.mark_non_differentiable(ctx.received)
        return whole, ctx.received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return calls.swapping(grads[0].contiguous(), ctx.received, None, ctx.process_set).run()[0], None, None, None


class _Scattered(Function):
    @staticmethod
    def forward(ctx: Any, facts: Any, *tensors: Tensor) -> Any:
        name, ctx.op, ctx.before, ctx.after, ctx.process_set = facts
        return tuple(calls.scattering(tensors, name, ctx.op, ctx.before, ctx.after, ctx.process_set).run())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        factor = ctx.before * ctx.after * (ctx.process_set.size() if ctx.op == SUM else 1)
        return None, *calls.gathering([grad * factor for grad in grads], None, ctx.process_set).run()


def _own_rows(grad: Tensor, shape: torch.Size, process_set: ProcessSet) -> Tensor:
    """This worker's rows of the average of everybody's gradient."""
    rows = shape[0] if shape else 1
    reduced = _average(grad, process_set)
    counts = calls.gathering([torch.tensor([rows])], None, process_set).run()[0]
    begin = int(counts[: process_set.rank()].sum())
    return reduced[begin : begin + rows].view(shape)


def _average(grad: Tensor, process_set: ProcessSet) -> Tensor:
    found: Tensor = calls.reduction([calls.copy_of(grad)], None, AVERAGE, 1.0, 1.0, process_set).run()[0]
    return found
