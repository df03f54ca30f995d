"""A batch through a pipeline of our own: stages with unequally many workers, or on different kinds of device.

The workers of a stage take micro-batches in turn, so a value goes to whoever computes its micro-batch next. Values
travel through host memory. Sends never wait, receives wait for exactly one value, and the order is one that was played
through (`order`), so nobody waits for somebody who waits for him.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.train.partition.order import BACKWARD, FORWARD, orders, owner
from shoal.train.partition.stage import Stage

Loss = Callable[[Any, int], Tensor]
MOST_VALUES = 64  # tensors between two stages


class Post:
    """Sends and receives by name: direction, micro-batch, number of the value."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._under_way: list[tuple[Any, Tensor]] = []

    def send(self, values: Sequence[Tensor], to: int, microbatch: int, backward: bool = False) -> int:
        size = 0
        for number, value in enumerate(values):
            ready = value.detach().cpu().contiguous()
            self._under_way.append((dist.isend(ready, to, tag=_tag(microbatch, backward, number)), ready))
            size += ready.numel() * ready.element_size()
        return size

    def receive(self, like: Sequence[Tensor], source: int, microbatch: int, backward: bool = False) -> list[Tensor]:
        came = [torch.empty(one.shape, dtype=one.dtype) for one in like]
        works = [dist.irecv(one, source, tag=_tag(microbatch, backward, number)) for number, one in enumerate(came)]
        for work in works:
            assert work is not None
            work.wait()
        return [one.to(self._device) for one in came]

    def flush(self) -> None:
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()


class Relay:
    """One worker: its stage and its number there. `ranks[stage][number]` says who is who."""

    def __init__(
        self, schedule: str, stage: Stage, place: tuple[int, int], ranks: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        self._schedule, self._stage, self._place, self._ranks = schedule, stage, place, ranks
        self._post = Post(device)
        self._orders: dict[int, list[tuple[str, int]]] = {}

    def run(self, batches: Sequence[Sequence[Any]], loss: Loss) -> list[Tensor]:
        """Forward and backward of this worker's micro-batches; their losses on the last stage, nothing elsewhere."""
        count = len(batches)
        if count not in self._orders:
            self._orders[count] = orders(self._schedule, [len(one) for one in self._ranks], count)[self._place]
        held: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
        losses: list[Tensor] = []
        for what, number in self._orders[count]:
            if what == FORWARD:
                held[number] = self._forward(batches[number], number, loss)
                losses += held[number][1] if self._stage.is_last else []
            else:
                assert what == BACKWARD
                self._backward(*held.pop(number), number)
        self._post.flush()
        return [one.detach() for one in losses]

    def _forward(self, inputs: Sequence[Any], number: int, loss: Loss) -> tuple[list[Tensor], list[Tensor]]:
        came: list[Tensor] = []

        def receive(like: list[Tensor]) -> list[Tensor]:
            came.extend(self._post.receive(like, self._peer(-1, number), number))
            for one in came:
                one.requires_grad_(one.is_floating_point())
            return came

        out = self._stage.run(inputs, receive)
        if self._stage.is_last:
            return came, [loss(out, number)]
        self._post.send(out, self._peer(1, number), number)
        return came, out

    def _backward(self, came: list[Tensor], made: list[Tensor], number: int) -> None:
        if self._stage.is_last:
            torch.autograd.backward(made)
        else:
            flowing = [one for one in made if one.is_floating_point()]
            grads = self._post.receive(flowing, self._peer(1, number), number, backward=True)
            kept = [(one, grad) for one, grad in zip(flowing, grads, strict=True) if one.requires_grad]
            if kept:
                torch.autograd.backward([one for one, _ in kept], [grad for _, grad in kept])
        if not self._stage.is_first:
            back = [torch.zeros_like(one) if one.grad is None else one.grad for one in came if one.is_floating_point()]
            self._post.send(back, self._peer(-1, number), number, backward=True)

    def _peer(self, step: int, number: int) -> int:
        ranks = self._ranks[self._place[0] + step]
        return ranks[owner(number, len(ranks))]


def _tag(microbatch: int, backward: bool, number: int) -> int:
    return (microbatch * 2 + backward) * MOST_VALUES + number + 1
