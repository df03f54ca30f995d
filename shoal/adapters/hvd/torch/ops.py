"""Collective operations on tensors that return a handle at once, and the handles. `direct` has those that wait.

Names ending in `_` work in the tensor itself, which is left alone until the handle is synchronised.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from shoal.adapters.hvd.ask import AVERAGE
from shoal.adapters.hvd.ops import chosen
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.torch import calls
from shoal.adapters.hvd.torch.calls import Call, copy_of

_started: dict[int, tuple[Call, Future[Any], Callable[[Any], Any]]] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once."""
    with _lock:
        started = _started.get(handle)
    return started is None or started[1].done()


def synchronize(handle: int) -> Any:
    """The operation's result; each handle once. HorovodInternalError when it failed."""
    with _lock:
        started = _started.pop(handle, None)
    if started is None:
        return None
    call, future, choose = started
    return choose(call.finish(call.engine.wait(future, call.ask.name)))


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    how = chosen(op, average)
    return _start(calls.reduction([tensor], name, how, prescale_factor, postscale_factor, process_set), _first)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    return allreduce_async_(copy_of(tensor), average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    how = chosen(op, average)
    return _start(calls.reduction(tensors, name, how, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    copies = [copy_of(one) for one in tensors]
    return grouped_allreduce_async_(copies, average, name, op, prescale_factor, postscale_factor, process_set)


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: str, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Of sparse tensors: everybody's entries, those of one index added up. Call what is returned for the result."""
    entries = tensor.coalesce()
    indices = allgather_async(entries.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(entries.values(), f"{name}.values", process_set)

    def finish() -> Tensor:
        every, where = synchronize(values), synchronize(indices).t()
        every = every / process_set.size() if op == AVERAGE else every
        return torch.sparse_coo_tensor(where, every, tensor.shape).coalesce()

    return finish


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Everybody's rows, one after another; the number of rows may differ."""
    return _start(calls.gathering([tensor], name, process_set), _first)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return _start(calls.gathering(tensors, name, process_set))


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return _start(calls.broadcasting(tensor, root_rank, name, process_set))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return broadcast_async_(copy_of(tensor), root_rank, name, process_set)


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Row blocks to everybody, as many rows to each as `splits` says, else as many to all. The result is what came,
    and with `splits` also how many rows from each."""
    return _start(calls.swapping(tensor, splits, name, process_set), _first if splits is None else _all)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: str = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """The reduced rows, to each worker its part of them."""
    return _start(calls.scattering([tensor], name, op, prescale_factor, postscale_factor, process_set), _first)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: str = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    return _start(calls.scattering(tensors, name, op, prescale_factor, postscale_factor, process_set))


def _all(found: Any) -> Any:
    return found


def _first(found: Any) -> Any:
    return found[0]


def _start(call: Call, choose: Callable[[Any], Any] = _all) -> int:
    future = call.engine.ask(call.ask, call.arrays)
    with _lock:
        handle = next(_numbers)
        _started[handle] = call, future, choose
    return handle
