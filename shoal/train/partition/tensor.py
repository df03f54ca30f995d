"""`tensor`: the matrices of a layer are cut over workers (DTensor).

Paper: Shoeybi et al., *Megatron-LM*, 2019 (1909.08053). Invariant: every worker of a copy computes the same outputs,
and after a step the parts put together equal one process that was given the batches of all copies.
Cost, for a pair of matrices with activations of A bytes and n workers: 1/n of weights, gradients and optimizer state
held; one all-reduce of A in forward and one in backward, so 2 · 2(n-1)/n · A sent; workers should share a host.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import parallelize_module
from torch.optim import Optimizer

from shoal.catalogue import nearest
from shoal.train import process_group
from shoal.train.api import Setting
from shoal.train.errors import BadModel
from shoal.train.partition import agree, mesh, plans, styles, whole
from shoal.train.partition.copies import AfterBackward, average
from shoal.train.partition.dtensors import OverDTensors
from shoal.train.partition.fsdp import blocks, give_back
from shoal.train.partition.mesh import COPY, PART, Layout
from shoal.train.unit import scalar

_log = logging.getLogger("shoal.train")


class TensorParallel(OverDTensors):
    """The partition of one call of `wrap`."""

    name = "tensor"

    def __init__(self, setting: Setting) -> None:
        self._world, self._seeing, self._options = setting.world, setting.seeing, setting.options
        size = int(self._options["size"]) or self._world.size
        copies = mesh.divided(self._world.size, size, "size")
        self._layout = Layout((COPY, PART), (copies, size))
        self.replica, self.replicas = self._layout.place(self._world.rank)[COPY], copies
        self._model: nn.Module | None = None
        self._optimizers: tuple[Optimizer, ...] = ()
        self._plan = plans.Plan()
        self._open = ExitStack()
        self._checked = False
        self._share = 0.0
        self._sent = 0  # bytes since the last forward began
        self._bytes: int | None = None  # and in the step before

    @property
    def _beside(self) -> list[int]:
        """The workers that hold the other parts of this copy."""
        return self._layout.line(self._world.rank, PART)

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        kind = mesh.device_kind(model)
        whole.elementwise(optimizers, "tensor")
        self._optimizers = tuple(optimizers)
        with process_group.joining(self._world, "wrap of tensor"):
            agree.same_model(model)
            self._plan = self._choose(model)
            agree.same_values(model)
            self._cut(model, mesh.build(self._layout, kind))
        self._model = model
        return model

    def _choose(self, model: nn.Module) -> plans.Plan:
        name = str(self._options["plan"])
        size = self._layout.size(PART)
        plan = plans.automatic(model, size) if name == "auto" else plans.given(_ask(name, model), model, f"plan={name}")
        if self._world.rank == 0:
            for told in plan.told_kept():
                _log.info("tensor keeps whole on every worker: %s", told)
        self._share = plans.share(model, plan)
        return plan

    def _cut(self, model: nn.Module, grid: DeviceMesh) -> None:
        known, tied = whole.names_of(model), plans.ties(model)
        parts = grid[PART]
        device = next(model.parameters()).device
        card = device if device.type == "cuda" else None
        self._group = parts.get_group()
        agree.same_chance(self._beside, self._group, card)
        self._open.enter_context(implicit_replication())
        torch.backends.mha.set_fastpath_enabled(False)  # it reads weights that are parts by now
        chosen = {
            name: styles.style_of(one, name in self._plan.local, self._count) for name, one in self._plan.cuts.items()
        }
        parallelize_module(model, parts, chosen, src_data_rank=None)
        styles.keep(model, parts, list(chosen))
        styles.attend(model, [name for name in chosen if name not in self._plan.local])
        _tie(model, tied)
        self._copy(model, grid)
        whole.point(self._optimizers, known, model)
        whole.show_whole(model)
        self._known = whole.names_of(model)
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after)

    def _copy(self, model: nn.Module, grid: DeviceMesh) -> None:
        """What the copies do with each other: average gradients, or share the parts out once more."""
        if self.replicas > 1 and self._options["copies"] == "shard":
            for block in blocks(model, 0.0):
                fully_shard(block, mesh=grid[COPY])
            fully_shard(model, mesh=grid[COPY], reshard_after_forward=False)
            return
        parameters = list(model.parameters())
        group = grid[COPY].get_group() if self.replicas > 1 else None
        AfterBackward(parameters, lambda: self._exchange(parameters, group))

    def _exchange(self, parameters: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        for one in parameters:
            styles.whole_gradient(one)
        if group is not None:
            size = average(parameters, group, self.replicas)
            self._count(int(2 * (self.replicas - 1) / self.replicas * size))

    def _count(self, size: int) -> None:
        self._sent += size
        self._seeing.sent(size, size)

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._bytes, self._sent = self._sent or self._bytes, 0
        if not self._checked:
            self._checked = True
            agree.same_batch([*args, *kwargs.values()], self._beside, self._group)

    def _after(self, module: nn.Module, args: Any, output: Any) -> Any:
        if not torch.is_grad_enabled():
            give_back(module)
        return styles.plain(output)

    def step(self, model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Sequence[Any], target: Any) -> Tensor:
        with process_group.waiting("step of tensor", process_group.others(self._world)):
            if not self._checked:
                self._checked = True
                agree.same_batch([*inputs, target], self._beside, self._group)
            loss = scalar(styles.plain(loss_fn(model(*inputs), target)), "run.step")
            return self._backward(loss)

    def finish(self) -> None:
        if self._model is not None:
            self._open.close()
        super().finish()

    def facts(self) -> Mapping[str, Any]:
        return {
            "learning_rate": f"yours: the gradient is the mean over {self.replicas} copies",
            "staleness": 0,
            "bytes_per_step": self._sent or self._bytes or "known after the first batch",
            "buffers": "alike within a copy; each copy keeps its own, a checkpoint holds those of worker-0",
            "cut": f"{self._share:.0%} of the parameters, over {self._layout.size(PART)} workers",
            "plan": self._plan.told_cuts(),
            "kept": "; ".join(self._plan.told_kept()) or "nothing that could be cut",
        }


def _ask(name: str, model: nn.Module) -> object:
    """What the script's function says; it may take the model."""
    script = sys.modules["__main__"]
    function = getattr(script, name, None)
    if not callable(function):
        known = [one for one, value in vars(script).items() if callable(value) and not one.startswith("_")]
        near = nearest(name, known)
        raise BadModel(
            f"tensor:plan={name}: the script has no function of that name"
            + (
                f"; did you mean {near!r}?"
                if near
                else f"; define def {name}(model): return {{'layers.*.fc1': 'columns'}}"
            )
        )
    return function(model) if inspect.signature(function).parameters else function()


def _tie(model: nn.Module, tied: Sequence[Sequence[str]]) -> None:
    """Ties again what was tied, now that each has been cut for itself."""
    for first, *others in tied:
        one = model.get_parameter(first)
        for name in others:
            if model.get_parameter(name).placements != one.placements:  # type: ignore[attr-defined]
                raise BadModel(
                    f"{first} and {name} are one weight, and the plan cuts them differently: give both the same style"
                )
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, one)
