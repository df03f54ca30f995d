"""Data parallel on top of a cut model: workers that hold the same part average its gradients when backward ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.distributed.tensor import DTensor

BUCKET = 25_000_000  # bytes that travel together


class AfterBackward:
    """Calls `act` at the end of every backward that reaches one of the parameters."""

    def __init__(self, parameters: Iterable[Tensor], act: Callable[[], None]) -> None:
        self._act, self._queued = act, False
        self._handles = [
            one.register_post_accumulate_grad_hook(self._reached)  # type: ignore[no-untyped-call]
            for one in parameters
            if one.requires_grad
        ]

    def _reached(self, parameter: Tensor) -> None:
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._queued = False
        self._act()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


@torch.no_grad()
def average(parameters: Sequence[Tensor], group: dist.ProcessGroup, divide_by: float) -> int:
    """Sums the gradients over the group and divides. Returns the bytes reduced.

    A parameter that took part on some members only counts as zero on the others; one that took part nowhere stays
    without. The order is that of `parameters`, so that it is the same everywhere whatever backward did. Collective.
    """
    if not parameters:
        return 0
    part = torch.tensor([one.grad is not None for one in parameters], dtype=torch.int32)
    took = part.to(_local(parameters[0]).device)
    dist.all_reduce(took, group=group)
    grads = []
    for parameter, count in zip(parameters, took.tolist(), strict=True):
        if count:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(_local(parameter.grad))
    for bucket in buckets(grads):
        flat = torch.cat([one.reshape(-1) for one in bucket])
        dist.all_reduce(flat, group=group)
        flat /= divide_by
        for one, piece in zip(bucket, torch.split(flat, [one.numel() for one in bucket]), strict=True):
            one.copy_(piece.view_as(one))
    return sum(one.numel() * one.element_size() for one in grads)


def buckets(tensors: Iterable[Tensor], size: int = BUCKET) -> list[list[Tensor]]:
    """In order, cut where the kind of number changes or the bucket is full."""
    made: list[list[Tensor]] = []
    room = 0
    for one in tensors:
        weight = one.numel() * one.element_size()
        if not made or made[-1][0].dtype != one.dtype or room < weight:
            made.append([])
            room = size
        made[-1].append(one)
        room -= weight
    return made


def _local(value: Any) -> Tensor:
    return value._local_tensor if isinstance(value, DTensor) else value
