"""A batch through a pipeline by torch's own schedules: for stages with equally many workers of one kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleLoopedBFS

from shoal.train.partition.stage import Stage

Loss = Callable[[Any, int], Tensor]  # output, number of the micro-batch → its share of the loss


class Schedule:
    """The stages of one worker (several when interleaved), by their numbers, out of `total`."""

    def __init__(
        self, name: str, stages: dict[int, Stage], total: int, device: torch.device, group: dist.ProcessGroup
    ) -> None:
        self._name, self._stages, self._total, self._device, self._group = name, stages, total, device, group
        self._made: dict[Any, _Ready] = {}

    def run(self, batches: Sequence[Sequence[Any]], loss: Loss) -> list[Tensor]:
        """Forward and backward of all micro-batches; the losses on the last stage, nothing elsewhere."""
        key = (len(batches), *((one.shape, one.dtype) for one in batches[0] if isinstance(one, Tensor)))
        if key not in self._made:
            self._made[key] = self._make(batches)
        return self._made[key].run(batches, loss)

    def _make(self, batches: Sequence[Sequence[Any]]) -> _Ready:
        """Torch's stages have fixed shapes. We know them without asking the neighbours, who would answer in pickle."""
        parts, stages = [], []
        for number, stage in sorted(self._stages.items()):
            came, out = stage.shapes(batches[0])
            out = [torch.empty(())] if stage.is_last else out  # the loss
            part = _Part(stage)
            parts.append(part)
            stages.append(
                PipelineStage(
                    part,
                    number,
                    self._total,
                    self._device,
                    input_args=_with_gradients(came),
                    output_args=_with_gradients(out),
                    group=self._group,
                )
            )
        return _Ready(self._name, parts, stages, len(batches), dist.get_world_size(self._group))


class _Ready:
    """Torch's objects for one number of micro-batches of one shape."""

    def __init__(self, name: str, parts: list[_Part], stages: list[PipelineStage], count: int, workers: int) -> None:
        self._parts, self._count = parts, count
        self._schedule = _class(name, count, stages[0].num_stages, workers)(
            stages if name == "interleaved" else stages[0], count, loss_fn=_already, scale_grads=False
        )

    def run(self, batches: Sequence[Sequence[Any]], loss: Loss) -> list[Tensor]:
        for part in self._parts:
            part.begin(batches, loss)
        losses: list[Tensor] = []
        self._schedule.step(target=torch.arange(self._count), losses=losses, return_outputs=False)
        return losses


def _already(loss: Tensor, number: Tensor) -> Tensor:
    """The last stage has computed the loss by itself: outputs and targets of any kind are not torch's to handle."""
    return loss


def _class(name: str, count: int, stages: int, workers: int) -> Any:
    """Torch's schedule. With fewer micro-batches than stages 1f1b is gpipe; interleaving needs equal rounds."""
    if name == "interleaved":
        return ScheduleInterleaved1F1B if count % max(1, count // workers) == 0 else ScheduleLoopedBFS
    return Schedule1F1B if name == "1f1b" and count >= stages else ScheduleGPipe


class _Part(nn.Module):
    """A stage as torch calls it: micro-batches come in order."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def begin(self, batches: Sequence[Sequence[Any]], loss: Loss) -> None:
        self._batches, self._loss = enumerate(batches), loss

    def forward(self, *received: Tensor) -> Any:
        number, inputs = next(self._batches)
        out = self._stage.run(inputs, lambda _: received)
        return self._loss(out, number) if self._stage.is_last else tuple(one.contiguous() for one in out)


def _with_gradients(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(one.shape, dtype=one.dtype, device="meta", requires_grad=one.is_floating_point()) for one in values
    )
