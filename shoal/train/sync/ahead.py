"""What is exchanged while backward runs: DistributedDataParallel around a core that is the user's forward.

The user keeps the model: calling it goes through DDP by a `Route`. Where forward changes which parameters are trained
(layers that are thawed later), DDP is made anew. A script that calls backward several times to a step shows how often;
from then on only the last of them is exchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shoal.train.errors import BadModel
from shoal.train.group.cuda import CudaGroup
from shoal.train.sync.ddp_hook import Buckets, Line, cores_to_spare
from shoal.train.sync.route import Forward, Route

if TYPE_CHECKING:
    from shoal.train.api import Setting
    from shoal.train.compress.api import Reducer
    from shoal.train.group.api import Group
    from shoal.train.sync.growth import Growth

MOST_NAMED = 5  # parameters named in a message
UNFINISHED = "Expected to have finished reduction"  # how DDP's complaint begins


class Core(nn.Module):
    """What DDP wraps: the model's parameters, and its plain forward without its hooks, which run outside."""

    def __init__(self, model: nn.Module, plain: Forward) -> None:
        super().__init__()
        self.model = model
        self._plain = plain

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain(*args, **kwargs)


class Ahead:
    """DDP around one model. `growth` learns what its buckets have taken."""

    def __init__(
        self,
        setting: Setting,
        group: Group,
        model: nn.Module,
        parameters: Sequence[Tensor],
        names: Mapping[int, str],
        reducer: Reducer | None,
        growth: Growth,
    ) -> None:
        self._options, self._model, self._names, self._growth = setting.options, model, names, growth
        self._parameters = list(parameters)
        self._group = group
        here = sum(setting.world.is_here(peer) for peer in setting.world.workers) or setting.world.size
        beside = cores_to_spare(here) and not isinstance(group, CudaGroup)
        self._buckets = Buckets(group, reducer, lambda one: names.get(id(one), "?"), self._all_taken, beside)
        self._route = Route(model)
        self._core = Core(model, self._route.plain)
        self._inside = False
        self._awaited = False  # a forward whose backward has not filled all buckets yet
        self._rhythm = Rhythm()
        self._handle: Any = None  # counts backwards
        self._trained: list[bool] = []
        self._ddp = self._make()
        self._route.take(self._forward)

    def before_step(self) -> None:
        """Raises what went wrong in backward; BadModel when only a part of the parameters took part in it."""
        self._buckets.check()
        if self._awaited and self._growth:
            raise self._unused()
        self._rhythm.step()

    def close(self) -> None:
        """The model is the user's again."""
        self._route.leave()
        self._buckets.close()
        self._undo()

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._inside or not torch.is_grad_enabled():
            return self._route.plain(*args, **kwargs)
        self._buckets.check()
        if self._trained != [one.requires_grad for one in self._parameters]:
            self._undo()
            self._ddp = self._make()
        if self._ddp is None:
            return self._route.plain(*args, **kwargs)
        self._ddp.require_backward_grad_sync = self._rhythm.is_last()
        self._inside = True
        try:
            return self._ddp(*args, **kwargs)
        except RuntimeError as error:
            if UNFINISHED in str(error):
                raise self._unused() from error
            raise
        finally:
            self._inside = False
            self._awaited = self._awaited or self._ddp.require_backward_grad_sync

    def _all_taken(self) -> None:
        """The last bucket is on its way: whatever grew until now is in one of them."""
        self._awaited = False
        self._growth.exchanged()

    def _make(self) -> DistributedDataParallel | None:
        """None while nothing is trained."""
        self._trained = [one.requires_grad for one in self._parameters]
        first = next((one for one in self._parameters if one.requires_grad), None)
        if first is None:
            return None
        wanted = {id(one) for one in self._parameters}
        ignored = [name for name, one in self._core.named_parameters() if id(one) not in wanted]
        self._core._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
        ddp = DistributedDataParallel(
            self._core,
            process_group=None if isinstance(self._group, CudaGroup) else Line(self._group),
            init_sync=False,
            bucket_cap_mb=self._options["bucket"],
            find_unused_parameters=self._options["unused"],
            gradient_as_bucket_view=True,
            **_without_buffers(),
        )
        # DDP reads annotations and knows no strings: the hook it gets has none.
        ddp.register_comm_hook(None, lambda state, bucket: self._buckets(bucket))
        self._growth.watch(self._parameters)
        self._handle = first.register_post_accumulate_grad_hook(self._rhythm.backward)  # type: ignore[no-untyped-call]
        return ddp

    def _undo(self) -> None:
        if self._ddp is not None:
            self._handle.remove()
            self._ddp.reducer._remove_autograd_hooks()

    def _unused(self) -> BadModel:
        grown = self._growth.grown()
        missing = [self._names[id(one)] for one in self._parameters if one.requires_grad and id(one) not in grown]
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        named = ", ".join(missing[:MOST_NAMED]) + more
        return BadModel(
            f"{named or 'some parameters'} took no part in the last loss, so the other workers wait for gradients that "
            "never come; set allreduce:unused=true, or freeze what is not trained (requires_grad = False)"
        )


class Rhythm:
    """How many backwards a step has: when the last two steps had the same number, the next one is taken to have it."""

    def __init__(self) -> None:
        self._done = 0
        self._before = 0
        self._expected = 1

    def backward(self, parameter: Tensor) -> None:
        self._done += 1

    def is_last(self) -> bool:
        """Whether the backward of a forward that begins now is the one to exchange."""
        return self._done + 1 >= self._expected

    def step(self) -> None:
        """A step without a backward, as of a second optimizer, says nothing."""
        if self._done:
            self._expected = self._done if self._done == self._before else 1
            self._before, self._done = self._done, 0


def _without_buffers() -> dict[str, Any]:
    """DDP leaves buffers alone: the argument has had two names."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers": False} if "forward_sync_buffers" in known else {"broadcast_buffers": False}
