"""`DistributedOptimizer`: the script's own optimizer, whose gradients are reduced among the workers before each step.

The exchange of a gradient begins in backward as soon as it is there; `step` waits for all of them. Workers may compute
in different orders and even skip parameters: operations find each other by the parameter's name, and what a worker did
not compute it brings as zeros.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.ask import ADASUM, AVERAGE
from shoal.adapters.hvd.objects import broadcast_object
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.torch import ops
from shoal.adapters.hvd.torch.compression import Compression

Optimizer = torch.optim.Optimizer
_OWN = ("step", "zero_grad")  # a learning rate schedule wraps them in the object itself; it finds them in the new one


def DistributedOptimizer(  # noqa: N802, Horovod's name
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class with the same parameters and state."""
    if gradient_predivide_factor != 1.0 and op != AVERAGE:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if op == ADASUM and process_set.process_set_id != global_process_set.process_set_id:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    names = _names(optimizer, named_parameters)
    cut = _groups(optimizer, names, num_groups or None if groups is None else groups, process_set)
    how = _How(names, compression, op, gradient_predivide_factor, sparse_as_dense, process_set, cut)
    kind = _Adasum if op == ADASUM and basics.size() > 1 else _Reducing
    made: Any = type(type(optimizer).__name__, (kind, type(optimizer)), {"__module__": __name__})
    new = made.__new__(made)
    new.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in _OWN})
    new._begin(how, backward_passes_per_step)
    return new


@dataclass(frozen=True)
class _How:
    """What was asked for."""

    names: dict[Tensor, str]
    compression: Any
    op: str
    predivide: float
    sparse_as_dense: bool
    process_set: ProcessSet
    groups: dict[Tensor, tuple[Tensor, ...]] = field(default_factory=dict)

    @property
    def scales(self) -> tuple[float, float]:
        return (1.0 / self.predivide, self.predivide) if self.op == AVERAGE else (1.0, 1.0)


class _Reducing:
    """Mixed in before the optimizer's own class."""

    param_groups: list[dict[str, Any]]

    def _begin(self, how: _How, passes: int) -> None:
        self._how = how
        self._handles: dict[tuple[Tensor, ...], tuple[Any, list[Any]]] = {}  # of each group under way
        self._left: dict[Tensor, int] = {}  # backward passes until its exchange
        self._synchronized, self._should_synchronize = False, True
        self.set_backward_passes_per_step(passes)
        every: list[Any] = self._reduced()
        self._hooks = [one.register_post_accumulate_grad_hook(self._computed) for one in every]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on so many backward passes are added up before one exchange."""
        self.backward_passes_per_step = passes
        self._left = dict.fromkeys(self._reduced(), passes)

    def synchronize(self) -> None:
        """Waits for all gradients; begins the exchange of those that no backward pass has made."""
        for group in self._all_groups():
            if group not in self._handles:
                self._exchange(group)
        for group, (handle, contexts) in self._handles.items():
            results = [handle()] if callable(handle) else ops.synchronize(handle)
            for one, result, context in zip(group, results, contexts, strict=True):
                self._take(one, self._how.compression.decompress(result, context))
        self._handles.clear()
        self._left = dict.fromkeys(self._left, self.backward_passes_per_step)
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step` does not wait: `synchronize` was called before, to clip gradients for example."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure)  # type: ignore[misc]
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): the "
                "gradients are exchanged twice; use `with optimizer.skip_synchronize(): optimizer.step()`",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
            self._synchronized = False
            return super().step()  # type: ignore[misc]
        return super().step(self._synchronized_after(closure))  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._handles:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, state_dict: Any) -> None:
        self._handles.clear()
        self._synchronized, self._should_synchronize = False, True
        self._left = dict.fromkeys(self._left, self.backward_passes_per_step)
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def _reduced(self) -> list[Tensor]:
        if not self._how.process_set.included():
            return []
        return [one for group in self.param_groups for one in group["params"] if one.requires_grad]

    def _all_groups(self) -> list[tuple[Tensor, ...]]:
        return list(dict.fromkeys(self._group(one) for one in self._left))

    def _group(self, one: Tensor) -> tuple[Tensor, ...]:
        return self._how.groups.get(one, (one,))

    def _computed(self, one: Tensor) -> None:
        """A backward pass has added to the gradient."""
        if self._left[one] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._left[one] -= 1
        group = self._group(one)
        if all(self._left[part] == 0 for part in group):
            self._exchange(group)

    def _exchange(self, group: tuple[Tensor, ...]) -> None:
        for one in group:
            if one.grad is None:
                one.grad = torch.zeros_like(one)
        how, first = self._how, group[0]
        if len(group) == 1 and first.grad is not None and first.grad.is_sparse and not how.sparse_as_dense:
            found = ops.sparse_allreduce_async(first.grad, how.names[first], how.op, how.process_set)
            self._handles[group] = found, [None]
            return
        dense = [one.grad.to_dense() if one.grad.is_sparse else one.grad for one in group]  # type: ignore[union-attr]
        pairs = [how.compression.compress(one) for one in dense]
        handle = ops.grouped_allreduce_async_(
            [small for small, _ in pairs], None, how.names[first], how.op, *how.scales, how.process_set
        )
        self._handles[group] = handle, [context for _, context in pairs]

    def _take(self, one: Tensor, result: Tensor) -> None:
        if one.grad is None:
            one.grad = result
        elif one.grad.is_sparse:
            one.grad = result if result.is_sparse else result.to_sparse(one.grad.sparse_dim())
        elif result.data_ptr() != one.grad.data_ptr():
            one.grad.copy_(result)

    def _synchronized_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure may be evaluated several times in one step, and each time its gradients are new."""

        def evaluate() -> Any:
            with torch.enable_grad():
                loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        return evaluate


class _Adasum(_Reducing):
    """Every worker takes its own step; the steps are combined by Adasum, not the gradients."""

    def _begin(self, how: _How, passes: int) -> None:
        super()._begin(how, passes)
        for hook in self._hooks:
            hook.remove()

    def synchronize(self) -> None:
        """There is nothing to wait for before the step."""

    def skip_synchronize(self) -> Any:
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        parameters = self._reduced()
        starts = [one.detach().clone() for one in parameters]
        loss = super(_Reducing, self).step(closure)  # type: ignore[misc]
        with torch.no_grad():
            deltas = [one - start for one, start in zip(parameters, starts, strict=True)]
            pairs = [self._how.compression.compress(delta) for delta in deltas]
            names = [self._how.names[one] for one in parameters]
            handles = [
                ops.allreduce_async_(small, None, name, ADASUM) for name, (small, _) in zip(names, pairs, strict=True)
            ]
            for one, start, handle, (_, context) in zip(parameters, starts, handles, pairs, strict=True):
                one.copy_(start + self._how.compression.decompress(ops.synchronize(handle), context))
        return loss


def _names(optimizer: Optimizer, named: Iterable[tuple[str, Tensor]] | None) -> dict[Tensor, str]:
    every = [one for group in optimizer.param_groups for one in group["params"]]
    if named is None:
        return {one: f"parameter.{number}" for number, one in enumerate(every)}
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    found = {one: name for name, one in pairs}
    unnamed = sum(one not in found for one in every)
    if unnamed:
        raise ValueError(
            f"named_parameters was specified, but {unnamed} of the optimizer's parameters were not named; "
            "give the names of all of them, or none"
        )
    return found


def _groups(
    optimizer: Optimizer, names: dict[Tensor, str], groups: Any, process_set: ProcessSet
) -> dict[Tensor, tuple[Tensor, ...]]:
    """Which parameters travel together: as listed, or so many groups in the first worker's order."""
    if groups is None or not process_set.included():
        return {}
    every = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        order = broadcast_object([names[one] for one in every], process_set.ranks[0], "groups", process_set)
        by_name = {names[one]: one for one in every}
        ordered = [by_name[name] for name in order]
        size, rest = divmod(len(ordered), groups)
        ends = [number * size + min(number, rest) for number in range(groups + 1)]
        cut = [tuple(ordered[low:high]) for low, high in itertools.pairwise(ends) if low < high]
    else:
        cut = [tuple(one for one in group if one.requires_grad) for group in groups]
    flat = [one for group in cut for one in group]
    if len(set(flat)) < len(flat):
        raise ValueError("A parameter can only appear once in groups.")
    return {one: group for group in cut for one in group}
