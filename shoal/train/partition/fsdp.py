"""`fsdp`: every worker holds a part of parameters, gradients and optimizer state (FSDP2).

Papers: Rajbhandari et al., *ZeRO*, SC'20 (1910.02054); Zhao et al., *PyTorch FSDP*, VLDB'23 (2304.11277).
Invariant: after a step the parts put together equal the parameters of one process that was given all batches (the mean
gradient over workers), whatever the number of workers.
Cost, with P bytes of parameters and n workers that share a copy: P/n held; (n-1)/n · P sent for each of: gathering in
forward, gathering again in backward (`reshard`), scattering gradients; with `replicas` r, 2(r-1)/r · P/n more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer

from shoal.train import process_group
from shoal.train.api import Setting
from shoal.train.errors import BadModel
from shoal.train.partition import agree, mesh, whole
from shoal.train.partition.dtensors import OverDTensors
from shoal.train.partition.mesh import COPY, SHARD, Layout
from shoal.train.unit import scalar

MB = 1_000_000


class Sharded(OverDTensors):
    """The partition of one call of `wrap`."""

    name = "fsdp"

    def __init__(self, setting: Setting) -> None:
        self._world, self._seeing, self._options = setting.world, setting.seeing, setting.options
        copies = int(self._options["replicas"])
        parts = mesh.divided(self._world.size, copies, "replicas")
        self._layout = Layout((COPY, SHARD), (copies, parts)) if copies > 1 else Layout((SHARD,), (parts,))
        self.replica, self.replicas = self._world.rank, self._world.size
        self._model: nn.Module | None = None
        self._optimizers: tuple[Optimizer, ...] = ()
        self._blocks = 0
        self._bytes = 0

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        kind = mesh.device_kind(model)
        _refuse_scalars(model)
        whole.elementwise(optimizers, "fsdp")
        self._optimizers = tuple(optimizers)
        with process_group.joining(self._world, "wrap of fsdp"):
            agree.same_model(model)
            agree.same_values(model)
            self._cut(model, kind)
        self._model = model
        return model

    def _cut(self, model: nn.Module, kind: str) -> None:
        known = whole.names_of(model)
        self._bytes = _bytes_sent(model, self._layout, bool(self._options["reshard"]))
        grid = mesh.build(self._layout, kind)
        every = list(blocks(model, float(self._options["block"]) * MB))
        for block in every:
            fully_shard(block, mesh=grid, reshard_after_forward=bool(self._options["reshard"]))
        # What is left in the root is gathered first and needed again first: giving it back between would be wasted,
        # unless it is the whole model.
        fully_shard(model, mesh=grid, reshard_after_forward=bool(self._options["reshard"]) and not every)
        self._blocks = len(every)
        whole.point(self._optimizers, known, model)
        whole.show_whole(model)
        self._known = whole.names_of(model)
        model.register_forward_hook(self._after_forward)

    def step(self, model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Sequence[Any], target: Any) -> Tensor:
        with process_group.waiting("step of fsdp", process_group.others(self._world)):
            loss = scalar(loss_fn(model(*inputs), target), "run.step")
            return self._backward(loss)

    def facts(self) -> Mapping[str, Any]:
        parts = self._layout.size(SHARD)
        return {
            "learning_rate": f"yours: the gradient is the mean over {self._world.size} workers",
            "staleness": 0,
            "bytes_per_step": self._bytes,
            "buffers": "each worker keeps its own; a checkpoint holds those of worker-0",
            "held": f"1/{parts} of parameters, gradients and optimizer state on each worker",
            "blocks": f"{self._blocks} gathered one by one, the rest with the model",
        }

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if module.training:
            self._seeing.sent(self._bytes, self._bytes)
        if not torch.is_grad_enabled():
            give_back(module)


def give_back(model: nn.Module) -> None:
    """After a forward that no backward follows: whole parameters that stayed would outlive the next step unchanged."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def blocks(model: nn.Module, least: float) -> Iterator[nn.Module]:
    """What is gathered by itself: the children of lists and sequences that hold at least `least` bytes and share none
    of their parameters with the rest of the model."""
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for child in _listed(model):
        inside: dict[int, int] = {}
        for module in child.modules():
            for parameter in module.parameters(recurse=False):
                inside[id(parameter)] = inside.get(id(parameter), 0) + 1
        alone = all(uses[number] == count for number, count in inside.items())
        if alone and inside and sum(one.numel() * one.element_size() for one in child.parameters()) >= least:
            yield child


def _listed(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        container = isinstance(child, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
        if isinstance(module, (nn.Sequential, nn.ModuleList)) and not container:
            yield child
        else:
            yield from _listed(child)


def _refuse_scalars(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise BadModel(
                f"parameter {name!r} has no dimension, and fsdp cuts along the first one: make it a tensor of one "
                "element, nn.Parameter(torch.ones(1))"
            )


def _bytes_sent(model: nn.Module, layout: Layout, reshard: bool) -> int:
    """What one worker sends in a step, by the cost above."""
    every = sum(one.numel() * one.element_size() for one in model.parameters())
    parts, copies = layout.size(SHARD), layout.workers // layout.size(SHARD)
    cut = (parts - 1) / parts * every * (3 if reshard else 2)
    return int(cut + 2 * (copies - 1) / copies * every / parts)
