"""Every step averages the gradients of all workers: synchronous data parallel training.

w ← w − α · mean over workers of g (Gupta, Zhang, Wang, ICDM 2016, call it hardsync). Invariant: replicas are bit-equal
after every step, and equal to one process with the whole batch up to the order of sums. Cost: 2(n−1)/n·M bytes a step.

torch's DistributedDataParallel works underneath: gradients travel in buckets while backward still runs. What a backward
outside of it left behind (a submodule called by itself, a second backward over one forward) is found at the step and
exchanged there. A script that accumulates over several backwards pays for one exchange, once it has shown how many it
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train import compress
from shoal.train.group.cuda import CudaGroup, have_one_each
from shoal.train.sync import alike
from shoal.train.sync.ahead import Ahead
from shoal.train.sync.behind import Behind
from shoal.train.sync.buffers import POLICY, Buffers
from shoal.train.sync.growth import Growth
from shoal.train.sync.route import Route
from shoal.train.unit import names, trained

if TYPE_CHECKING:
    from shoal.train.api import Setting, State


class AllReduce:
    """The Synchroniser of `allreduce`."""

    needs_gradient = True

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._reducer = compress.reducer(setting.options)
        self._growth = Growth()
        self._ahead: Ahead | None = None
        self._cuda: CudaGroup | None = None
        self._steps: list[Tensor] = []
        self._finished = False

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        group = self._setting.group()
        alike.agree(model, optimizers, group)
        self._steps = _stepped(optimizers)
        if self._steps[0].is_cuda and have_one_each(self._steps, group):
            group = self._cuda = CudaGroup(self._setting.world, group)
        alike.start_equal(alike.everything(model), group)
        known = dict(zip(map(id, self._steps), names(model, self._steps), strict=True))
        self._behind = Behind(group, self._reducer, known, self._growth)
        self._buffers = Buffers(model, group)
        if Route.possible(model):
            self._ahead = Ahead(self._setting, group, model, self._steps, known, self._reducer, self._growth)
        return model

    def before_step(self, optimizer: Optimizer, skipped: bool = False) -> None:
        if self._ahead is not None:
            self._ahead.before_step()
        self._behind.settle(trained(optimizer), always=self._ahead is None)

    def after_step(self, optimizer: Optimizer) -> None:
        self._buffers.spread()

    def finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        if self._ahead is not None:
            self._ahead.close()
        self._growth.close()
        if self._cuda is not None:
            self._cuda.leave()

    def state(self) -> State:
        if self._reducer is None:
            return {}
        return {"rank": self._setting.world.rank, "residuals": self._reducer.state()}

    def load(self, state: State) -> None:
        """The residuals of the worker that had this rank; those of one that is no more are lost with it."""
        if self._reducer is not None and state.get("rank") == self._setting.world.rank:
            self._reducer.load(state["residuals"])

    def facts(self) -> Mapping[str, Any]:
        size, moved = self._setting.world.size, sum(one.nbytes for one in self._steps if one.requires_grad)
        squeezed = self._setting.options["compress"]
        return {
            "learning_rate": f"yours, unscaled: the gradient is the mean over {size} workers, as of one larger batch",
            "staleness": "none: every worker steps with the same mean",
            "bytes_per_step": round(2 * (size - 1) / max(1, size) * moved * self._share()),
            "buffers": POLICY,
            "buckets": f"{self._setting.options['bucket']:g} MB, sent while backward runs"
            if self._ahead
            else "none: the class of this model cannot be changed, so all is sent at the step",
            **({"compression": squeezed} if squeezed != "none" else {}),
        }

    def _share(self) -> float:
        """How much of a gradient travels."""
        options = self._setting.options
        return self._thin() if options["compress"] == "powersgd" else compress.share(options)

    def _thin(self) -> float:
        """PowerSGD sends two thin matrices for a wide one."""
        rank, whole, thin = int(self._setting.options["rank"]), 0, 0
        for one in self._steps:
            rows = one.shape[0] if one.dim() > 1 else one.numel()
            columns = one.numel() // max(1, rows)
            whole += one.numel()
            thin += min(one.numel(), rank * (rows + columns)) if one.dim() > 1 else one.numel()
        return thin / max(1, whole)


def _stepped(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Every parameter of the optimizers once; frozen ones too, which may be thawed."""
    found = (one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"])
    return list({id(one): one for one in found}.values())
